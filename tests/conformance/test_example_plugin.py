"""A plugin package of its own: installed from its folder, found, checked, chosen and run."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inferd.config.schema import Config, Plugins
from inferd.config.schema import Engine as EngineConfig
from inferd.engine.build import build_engine
from inferd.engine.offline import run
from inferd.engine.settings import WorkerSettings
from inferd.link import ModelCard, Submit
from inferd.plugin.conformance import check
from inferd.plugin.manager import PluginManager
from inferd_client.protocol import SamplingParams
from tests.plugin.fake import install
from tests.tiny import tiny_llama

torch.set_num_threads(1)
PACKAGE = Path(__file__).parent / "example_plugin"


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Path:
    """Install the package as a user would, from a copy, so that a build leaves nothing behind."""
    source = shutil.copytree(PACKAGE, tmp_path / "source")
    options = ["--quiet", "--target", str(site), "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *options, str(source)], check=True
    )
    importlib.invalidate_caches()
    return site


def generate(model: Path, attention: str, table: dict[str, int]) -> tuple[list[int], ModelCard]:
    config = Config(
        engine=EngineConfig(device="cpu", threads=1, max_sequences=2, block_size=4, kv_blocks=80, chunk=8),
        plugins=Plugins(attention=attention),
        plugin={"attention": {attention: table}} if table else {},
    )
    engine, card = build_engine(WorkerSettings(name="tiny", path=str(model), config=config))
    prompt = list(range(30, 50))
    request = Submit(
        key="r",
        client="c",
        prompt=prompt,
        sampling=SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, seed=0),
    )
    return run(engine, [request])["r", 0].ids, card


def test_a_third_party_backend_from_installation_to_tokens(installed: Path, tmp_path: Path) -> None:
    manager = PluginManager().load()
    assert manager.failures == []
    entry = manager.find("attention", "example")
    assert entry.source.label == "inferd-example 0.3.0"

    for options in ({}, {"heads_at_once": 1}):
        report = check(entry.spec, options=options)
        assert report.ok, str(report)
        assert "skipped" not in {r.outcome for r in report.results if r.check == "window"}

    # From here on a broken package stands beside it: a worker must not mind.
    install(installed, "broken", {"broken": "raise SystemExit(1)"}, {"broken": "broken"})
    model = tiny_llama(tmp_path / "model")
    want, card = generate(model, "reference", {})
    assert ("attention", "example") in {(kind, name) for kind, name, _ in card.rejected}
    got, card = generate(model, "example", {"heads_at_once": 1})
    assert got == want
    assert len(got) == 20
    (line,) = [e for e in card.manifest if e.kind == "attention"]
    assert (line.distribution, line.version) == ("inferd-example", "0.3.0")


def test_its_options_are_checked_under_its_own_table(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[plugin\.attention\.example\] heads: unknown option"):
        generate(tiny_llama(tmp_path / "model"), "example", {"heads": 1})
