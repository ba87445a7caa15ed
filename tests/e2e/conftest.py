"""A daemon with a tiny model and a third party's plugin, for all tests here that leave it as they found it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_client import Client
from tests.e2e.harness import Served, all_free, eventually, ready, serving
from tests.plugin.fake import install
from tests.tiny import tiny_llama

CONTEXT = 4096
ENGINE = {"max_sequences": 8, "block_size": 8, "threads": 1, "chunk": 64, "kv_blocks": 2048}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the module path of a daemon, in which the trap plugin is installed."""
    folder = tmp_path_factory.mktemp("site")
    source = Path(__file__).parent / "trap_plugin" / "inferd_trap.py"
    install(folder, "inferd-trap", {"inferd_trap": source.read_text()}, {"trap": "inferd_trap"})
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama folder with a long context. Copies of it are further models."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT)


@pytest.fixture(scope="session")
def served(tiny: Path, site: Path) -> Iterator[Served]:
    config = {"engine": ENGINE, "plugins": {"attention": "trap"}, "daemon": {"max_queue": 4096}}
    config["daemon"]["max_client_requests"] = 4096
    with serving(tiny, config, site) as daemon:
        ready(daemon.client("warm"), str(tiny))
        yield daemon


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client of its own; after the test its work is gone and every block is free."""
    with served.client() as client:
        yield client
    with served.client("watcher") as watcher:
        eventually(lambda: all_free(watcher, "tiny"), lambda: watcher.status().models)


def copy_of(model: Path, folder: Path, name: str) -> Path:
    """Return a model of another name with the same files."""
    return shutil.copytree(model, folder / name)
