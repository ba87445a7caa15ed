"""The one exception of the configuration package."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting, a config file or a folder is wrong; the message names the file and the key."""
