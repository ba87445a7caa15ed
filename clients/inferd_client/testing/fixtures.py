"""Pytest fixtures for applications that talk to inferd."""
