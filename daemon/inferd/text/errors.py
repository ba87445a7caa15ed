"""The one error of the text process that a request is told."""

from __future__ import annotations


class TextError(ValueError):
    """The template or the input is at fault; `field` names the request's field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
