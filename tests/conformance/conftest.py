"""The folder on sys.path that plugin packages are installed into."""

from tests.plugin.conftest import site

__all__ = ["site"]
