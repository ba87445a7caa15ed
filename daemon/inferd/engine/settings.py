"""What the front tells an engine worker at its start, as a JSON file in the runtime directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from inferd.config.schema import Config


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker (or the scripted engine) needs; nothing is read from the environment."""

    name: str
    """Model name as the front knows it."""
    path: str
    """GGUF file or Hugging Face directory, absolute."""
    config: Config
    """Already merged for this model (`Config.for_model`)."""
    memory: int = 0
    """Byte grant from the ledger; 0 = none was set."""
    runtime: str = ""
    """Runtime directory, for rendezvous files of ranks."""
    cache: str = ""
    """Folder for what is measured once a machine; empty = nowhere."""
    script: dict[str, Any] = {}
    """Of the scripted engine only."""
    attempt: int = 0
    """How many workers this model had before in the life of the daemon."""

    @staticmethod
    def load(path: Path) -> WorkerSettings:
        return msgspec.json.decode(path.read_bytes(), type=WorkerSettings)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))
