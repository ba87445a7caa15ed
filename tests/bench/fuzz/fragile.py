"""Targets with faults on purpose, by which the run is tested."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from random import Random

from tests.bench.fuzz.targets import Target


class Fragile(Target):
    """Faults of every kind on certain inputs."""

    name = "fragile"
    seconds = 0.2

    def seeds(self) -> list[bytes]:
        return [b"seed"]

    def change(self, rng: Random, corpus: Sequence[bytes]) -> bytes:
        return str(rng.randrange(40)).encode()

    def read(self, data: bytes) -> str:
        match data:
            case b"7":
                raise KeyError("a fault")
            case b"11":
                os._exit(3)
            case b"13":
                ctypes.string_at(0)
            case b"17":
                time.sleep(0.4)
        return ""


class Apart(Fragile):
    """As it would be in a process that may die."""

    may_die = True
