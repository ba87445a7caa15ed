"""Options of the quantizers."""

from __future__ import annotations

from typing import Literal

import msgspec


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[plugin.quantizer.int4]`."""

    group: Literal[32, 64, 128] = 128
    """Columns that share a scale, or the largest smaller group that divides a matrix's columns."""


class ChannelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[plugin.quantizer.int8]` and `[plugin.quantizer.fp8]`."""

    group: Literal[0, 32, 64, 128] = 0
    """Columns that share a scale; 0 = a whole row, which GPUs multiply by rows rounded to 8 bits as well."""
