"""The default model as a file: where it is installed, and joined again from the pieces that `pack.sh` cut."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from inferd.config.layers import load_config
from inferd.config.paths import RuntimePaths
from inferd.load.store import Store

PIECES = ("first/model.part", "second/model.part")


def installed() -> Path:
    """Return the file of the default model. Raises LoadError where it was never pulled."""
    config = load_config().config
    return Store(RuntimePaths.of(config).models).resolve(config.default_model)


def joined(packed: Path, folder: Path) -> Path:
    """Join the pieces below `packed` into `folder`. Raises ValueError when the bytes are not those that were cut.

    OSError where a piece is missing.
    """
    digest = hashlib.sha256()
    target = folder / (packed / "first/model.name").read_text().strip()
    own = target.with_name(f"{target.name}.{os.getpid()}")  # processes that share a part join at the same time
    with own.open("wb") as file:
        for piece in PIECES:
            data = (packed / piece).read_bytes()
            digest.update(data)
            file.write(data)
    wanted = (packed / "first/model.sha256").read_text().strip()
    if digest.hexdigest() != wanted:
        own.unlink()
        raise ValueError(f"the joined model has sha256 {digest.hexdigest()}, not {wanted}")
    return own.replace(target)


if __name__ == "__main__":
    print(installed())
