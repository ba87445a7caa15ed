"""The model: one decoder definition, its rotary tables, and strict building from a checkpoint."""

from inferd.model.groups import expand_gqa, kv_groups

__all__ = ["expand_gqa", "kv_groups"]
