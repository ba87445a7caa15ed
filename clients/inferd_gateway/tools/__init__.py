"""Tool calls in the text of a model: one parser for each way templates teach models to write them."""

from .base import Call, Event, Text, ToolParser
from .formats import FORMATS, ToolFormat

__all__ = ["FORMATS", "Call", "Event", "Text", "ToolFormat", "ToolParser"]
