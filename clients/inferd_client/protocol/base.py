"""The two bases of all messages: what is sent to the daemon, what comes from it."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything a client sends."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything the daemon sends."""
