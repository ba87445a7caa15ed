"""Copy a model of this machine into the store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from inferd.load.errors import NotFound
from inferd.load.pull import Fetched, Progress
from inferd.load.pull_select import select_files
from inferd.load.pull_source import FileSource
from inferd.load.store import StoredFile
from inferd.load.store_files import check_space, copy_checked


def fetch_local(source: FileSource, incoming: Path, report: Progress) -> Fetched:
    """Copy a GGUF file or the files of a Hugging Face directory. Raises LoadError."""
    path = source.path
    if path.is_dir():
        names = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()]
        entry, files = select_files(names, None, str(path))
        folder = path
    elif path.is_file():
        folder, entry, files = path.parent, path.name, [path.name]
    else:
        raise NotFound(f"{path}: no such file or folder")
    total = sum((folder / name).stat().st_size for name in files)
    check_space(incoming, total)
    shutil.rmtree(incoming)
    done = 0
    stored: list[StoredFile] = []
    for name in files:
        stored.append(_copy(folder / name, incoming / name, name, done, total, report))
        done += stored[-1].size
    return Fetched(entry, tuple(stored))


def _copy(source: Path, target: Path, name: str, before: int, total: int, report: Progress) -> StoredFile:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        copied = copy_checked(file, target, size, lambda done: report(f"copying {name}", before + done, total))
    return StoredFile(name, copied.size, copied.sha256)
