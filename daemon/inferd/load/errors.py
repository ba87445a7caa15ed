"""Errors of loading."""


class LoadError(ValueError):
    """A model cannot be loaded. The message names the file and the field or tensor, and the remedy."""


class NotFound(LoadError):
    """There is no such model, file or repository."""
