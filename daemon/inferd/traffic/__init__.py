"""The traffic record: how long requests are, when they come, what of them was cached. Lengths only, never text.

The file, the wire and the export share one form, `protocol.TrafficReport`.
"""
