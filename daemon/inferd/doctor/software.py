"""Python, the packages of the daemon, and ZeroMQ."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

import inferd
from inferd.doctor.finding import Finding, failure, ok

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

TOPIC = "software"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)[^;]*;.*extra == ['\"]daemon['\"]")
_OPTIONAL = {"triton", "nvidia-ml-py", "llguidance", "prometheus-client"}
"""Without these the daemon serves, with less."""


def check(what: Examined) -> Iterator[Finding]:
    yield ok(TOPIC, f"inferd {inferd.__version__}, Python {platform.python_version()} ({sys.executable})")
    missing = [name for name in required() if not _installed(name)]
    if missing:
        yield failure(TOPIC, f"packages are missing: {', '.join(missing)}", "pip install 'inferd[daemon]'")
    else:
        yield ok(TOPIC, "all packages of the daemon are installed")
    yield from _check_zmq(what)


def required() -> list[str]:
    """Return the packages that the extra `daemon` names and the daemon cannot do without."""
    found = (_REQUIREMENT.match(line) for line in metadata.requires("inferd") or ())
    return [match["name"] for match in found if match and match["name"] not in _OPTIONAL]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _check_zmq(what: Examined) -> Iterator[Finding]:
    import zmq

    from inferd.front.sockets import OLDEST_ZMQ

    version = f"ZeroMQ {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}"
    if zmq.zmq_version_info() < OLDEST_ZMQ:
        yield failure(TOPIC, f"{version} has known memory faults", "pip install -U pyzmq")
    elif what.config.daemon.tcp and not zmq.has("curve"):
        yield failure(TOPIC, f"{version} has no CURVE, which daemon.tcp needs", "pip install pyzmq from PyPI")
    else:
        yield ok(TOPIC, version)
