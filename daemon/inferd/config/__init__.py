"""Settings: their schema, the layers they come from, and the folders the daemon uses."""

from inferd.config.errors import ConfigError
from inferd.config.schema import Config

__all__ = ["Config", "ConfigError"]
