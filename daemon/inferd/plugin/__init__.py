"""Plugin contracts, and the machinery that finds, checks and chooses plugins.

A plugin package needs `hookimpl` from `inferd.plugin.hookspecs`, the classes of
`inferd.plugin.contracts` and the data of `inferd.plugin.types`. docs/PLUGINS.md shows how.
"""
