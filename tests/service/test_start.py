"""What the unit files say and what the daemon does with it, from the start to the stop, without systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.service.unit import own_command
from inferd_client import Client
from tests.service.manager import Service, is_ours_alone
from tests.tiny import tiny_llama

pytestmark = pytest.mark.daemon

SMALL = ("--set", "engine.max_context=64", "--set", "daemon.spare_worker=off")


def test_the_system_service_from_start_to_stop(short_folder: Path) -> None:
    model = tiny_llama(short_folder / "tiny")
    settings = ("--set", f"models.tiny.path={model}", "--set", "default_model=tiny")
    service = Service("system", short_folder, [*own_command(), *SMALL, *settings, "serve"], watchdog_s=1.0)
    try:
        service.hear("READY=1")
        assert "STATUS=tiny: ready" in service.told
        runtime = service.folder("Runtime")
        assert is_ours_alone(runtime)
        assert all(is_ours_alone(path) for path in runtime.iterdir())
        with Client(runtime) as client:
            assert client.generate("ab", max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
        service.told.clear()
        service.hear("WATCHDOG=1")
        service.told.clear()
        assert service.stop() == 0
        (stopping,) = [told for told in service.told if told.startswith("STOPPING=1")]
        assert "EXTEND_TIMEOUT_USEC=" in stopping
    finally:
        service.close()
    assert (service.folder("State") / "traffic.json").exists()
    assert any(service.folder("Cache").iterdir())
    left = {path.name for path in short_folder.iterdir()}
    assert left == {"run", "lib", "cache", "etc", "tiny", "notify", "log"}  # nothing beside the folders of the unit


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("--set", "default_model=no-such-model"), "no-such-model"),
        (("--set", "engine.no_such_setting=1"), "no_such_setting"),
    ],
)
def test_what_a_restart_cannot_mend_ends_it_for_good(short_folder: Path, settings: tuple[str, ...], told: str) -> None:
    service = Service("system", short_folder, [*own_command(), *settings, "serve"])
    try:
        code = service.ended()
    finally:
        service.close()
    assert str(code) in service.unit["RestartPreventExitStatus"][0].split()
    assert told in service.log
    assert "READY=1" not in service.told


def test_settings_come_from_the_folder_of_the_unit(short_folder: Path) -> None:
    """/etc/inferd/config.toml of the system service."""
    (short_folder / "etc" / "inferd").mkdir(parents=True)
    (short_folder / "etc" / "inferd" / "config.toml").write_text('default_model = "named-in-etc"\n')
    service = Service("system", short_folder, [*own_command(), "serve"])
    try:
        assert service.ended() == 66
    finally:
        service.close()
    assert "named-in-etc" in service.log
