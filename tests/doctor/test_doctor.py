"""The doctor finds what is wrong and names what mends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd.config.paths import RuntimePaths
from inferd.config.schema import Config, Daemon, Engine, Model, Plugins
from inferd.devices import Gpu, Gpus, HostMemory, Survey
from inferd.doctor import Examined, Finding, compiled, daemon, examine, folders, gpus, memory, models, plugins
from inferd.keys import KeyStore, Pair
from inferd_client.testing import FakeDaemon
from tests.cli.conftest import tool
from tests.cli.tool import Tool
from tests.tiny import tiny_llama

__all__ = ["tool"]
GIB = 1 << 30


def what(folder: Path, config: Config | None = None, files: tuple[Path, ...] = ()) -> Examined:
    paths = RuntimePaths(
        runtime=folder / "run", models=folder / "models", cache=folder / "cache", state=folder / "state"
    )
    return Examined(config or Config(), files, paths)


def bad(findings: Iterator[Finding]) -> list[Finding]:
    found = [f for f in findings if f.level != "ok"]
    assert all(f.remedy for f in found)
    return found


def test_the_command_on_this_machine(tool: Tool, tmp_path: Path) -> None:
    assert tool("pull", f"file:{tiny_llama(tmp_path / 'tiny')}", "--name", "smollm2-135m").code == 0
    ran = tool("doctor", "--json")
    found = {(f["topic"], f["level"]) for f in ran.json["findings"]}
    assert {topic for topic, _ in found} >= {"software", "config", "sockets", "daemon", "gpu", "kernels", "models"}
    assert ran.json["ok"] == (ran.code == 0)
    assert ran.code == 0, ran.out
    assert all(f["remedy"] or f["level"] == "ok" for f in ran.json["findings"])
    shown = tool("doctor").out.splitlines()
    assert any(line.startswith("ok") and "smollm2-135m" in line and "tensors" in line for line in shown)
    assert not any(line.startswith("ok") for line in tool("doctor", "--quiet").out.splitlines())


def test_a_setting_that_cannot_be_read_is_a_failure(tool: Tool) -> None:
    tool.user_file.parent.mkdir(parents=True)
    tool.user_file.write_text("[engine]\nchunks = 1\n")
    ran = tool("doctor")
    assert ran.code == 1
    assert "failure  config" in ran.out
    assert "engine.chunks" in ran.out


def test_a_broken_check_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_what: Any) -> Iterator[Finding]:
        raise RuntimeError("oh")
        yield

    monkeypatch.setattr("inferd.doctor.checks.CHECKS", (("first", broken), ("memory", memory.check)))
    first, *rest = examine(what(tmp_path))
    assert (first.level, first.topic) == ("failure", "first")
    assert "RuntimeError: oh" in first.text
    assert rest


class TestFolders:
    def test_a_config_that_others_can_change(self, tmp_path: Path) -> None:
        file = tmp_path / "config.toml"
        file.touch()
        file.chmod(0o666)
        (found,) = bad(folders.check_config(what(tmp_path, files=(file,))))
        assert found.remedy == f"run: chmod o-w {file}"

    def test_a_runtime_folder_open_to_others_or_too_long(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir(mode=0o755)
        (found,) = bad(folders.check(what(tmp_path)))
        assert found.remedy == f"run: chmod 700 {tmp_path / 'run'}"
        long = what(tmp_path / ("x" * 100))
        assert any("exceeds 107" in f.text for f in bad(folders.check(long)))

    def test_nothing_is_made(self, tmp_path: Path) -> None:
        assert bad(folders.check(what(tmp_path))) == []
        assert list(tmp_path.iterdir()) == []

    def test_what_the_caches_take(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        (tmp_path / "cache" / "deep").mkdir(parents=True)
        (tmp_path / "cache" / "deep" / "file").write_bytes(b"x" * 1000)
        assert folders.size_of(tmp_path / "cache") >= 1000
        assert any(f"{tmp_path / 'cache'} holds" in f.text for f in folders.check(what(tmp_path)))
        monkeypatch.setattr(folders, "BIG_CACHE", 100)
        assert f"rm -r {tmp_path / 'cache'}" in bad(folders.check(what(tmp_path)))[0].remedy

    def test_a_file_where_a_folder_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "cache").touch()
        assert [f.topic for f in bad(folders.check(what(tmp_path)))] == ["cache"]

    def test_keys_of_tcp(self, tmp_path: Path) -> None:
        config = Config(daemon=Daemon(tcp="tcp://127.0.0.1:5555"))
        assert "inferd keys new" in bad(folders.check(what(tmp_path, config)))[0].remedy
        store = KeyStore(tmp_path / "state")
        store.allow("a", Pair.new().public_key, "user")
        assert bad(folders.check(what(tmp_path, config))) == []
        store.clients_file.chmod(0o644)
        assert bad(folders.check(what(tmp_path, config)))[0].remedy == f"run: chmod 600 {store.clients_file}"


class TestDaemon:
    def test_one_that_serves(self, tmp_path: Path) -> None:
        with FakeDaemon() as running:
            found = list(daemon.check(what(tmp_path)._replace(paths=paths_at(running.runtime))))
        assert bad(iter(found)) == []
        assert any("answers in" in f.text for f in found)

    def test_one_that_holds_the_folder_and_does_not_answer(self, tmp_path: Path) -> None:
        runtime = Path("/tmp") / f"infd-doctor-{os.getpid()}"
        runtime.mkdir(mode=0o700)
        code = "import sys; from pathlib import Path; from inferd.front.sockets import take_lock;"
        code += "take_lock(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(runtime / "inferd.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert holder.stdout
            holder.stdout.readline()
            (found,) = bad(daemon.check(what(tmp_path)._replace(paths=paths_at(runtime))))
            assert (found.level, found.remedy) == ("failure", f"kill {holder.pid}")
        finally:
            holder.communicate()
            for file in runtime.iterdir():
                file.unlink()
            runtime.rmdir()

    def test_an_engine_without_its_daemon(self, tmp_path: Path) -> None:
        for pid, parent, module in (
            ("11", "1", "inferd.engine.worker"),
            ("12", "7", "inferd.engine.worker"),
            ("13", "1", "x"),
            ("14", "20", "inferd.grammar"),
            ("15", "21", "inferd.text"),
        ):
            (tmp_path / pid).mkdir()
            (tmp_path / pid / "cmdline").write_bytes(b"\0".join([b"python", b"-m", module.encode(), b"link", b""]))
            (tmp_path / pid / "stat").write_text(f"{pid} (python) S {parent} 0")
            (tmp_path / pid / "exe").symlink_to("/usr/bin/python3")
        for pid, program in (("7", "/usr/bin/python3"), ("20", "/lib/systemd/systemd"), ("21", "/usr/bin/python3")):
            (tmp_path / pid).mkdir()
            (tmp_path / pid / "exe").symlink_to(program)
        found = list(daemon.check_orphans(tmp_path))
        assert sorted(orphan.remedy for orphan in found) == ["kill 11", "kill 14"]  # 1 is not ours, 20 a session's init
        assert {orphan.level for orphan in found} == {"warning"}
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "exe").symlink_to("/usr/bin/python3")  # the daemon is process 1 of a container
        assert [orphan.remedy for orphan in daemon.check_orphans(tmp_path)] == ["kill 14"]


def paths_at(runtime: Path) -> RuntimePaths:
    return RuntimePaths(runtime=runtime, models=runtime, cache=runtime, state=runtime)


def test_little_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "host_memory", lambda: HostMemory(8 * GIB, GIB))
    (found,) = bad(memory.check(what(tmp_path)))
    assert "1.0 GiB of 8.0 GiB are free, 0.0 GiB of them for models" in found.text
    monkeypatch.setattr(memory, "host_memory", lambda: None)
    assert "daemon.memory_limit" in bad(memory.check(what(tmp_path)))[0].remedy


class TestGpus:
    def see(self, monkeypatch: pytest.MonkeyPatch, *found: Gpu, problem: str = "", cards: int = 0) -> None:
        said = Gpus(gpus=found, driver="570.1", cuda=(12, 8), problem=problem)
        monkeypatch.setattr(gpus, "survey", lambda: Survey(host=None, gpus=said, cpu_energy_j=None))
        monkeypatch.setattr(gpus, "cards_on_the_bus", lambda: cards)

    def test_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.see(monkeypatch, problem="no driver")
        assert bad(gpus.check(what(tmp_path))) == []
        wanted = Config(engine=Engine(device="cuda"))
        assert "engine.device = auto" in bad(gpus.check(what(tmp_path, wanted)))[0].remedy

    def test_a_card_without_its_driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.see(monkeypatch, problem="Driver Not Loaded", cards=2)
        (found,) = bad(gpus.check(what(tmp_path)))
        assert found.level == "failure"
        assert "Driver Not Loaded" in found.text

    def test_a_torch_without_cuda(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        gpu = Gpu(index=0, uuid="u", name="H200", total_bytes=100 * GIB, free_bytes=5 * GIB, capability=(9, 0))
        self.see(monkeypatch, gpu)
        monkeypatch.setattr(torch.version, "cuda", None)
        found = bad(gpus.check(what(tmp_path)))
        assert any("built without CUDA" in f.text for f in found)
        assert any("5.0 GiB of 100.0 GiB are free" in f.text for f in found)

    def test_a_gpu_that_torch_was_not_built_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        gpu = Gpu(index=0, uuid="u", name="RTX 5090", total_bytes=GIB, free_bytes=GIB, capability=(12, 0))
        self.see(monkeypatch, gpu)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
        text = " ".join(f.text for f in bad(gpus.check(what(tmp_path))))
        assert "RTX 5090 is sm_120" in text
        assert "torch is built for CUDA 13.0, the driver serves 12.8" in text

    @pytest.mark.parametrize(
        ("names", "capability", "runs"),
        [
            (["sm_80"], (8, 0), True),
            (["sm_80"], (8, 9), True),
            (["sm_86"], (8, 0), False),
            (["sm_80"], (9, 0), False),
            (["sm_90", "sm_100"], (12, 0), False),
            (["sm_50", "compute_80"], (12, 0), True),
            (["compute_90"], (8, 0), False),
            (["sm_90a"], (9, 0), True),
            (["sm_100a"], (10, 3), False),
            ([], (9, 0), False),
        ],
    )
    def test_which_kernels_run_where(self, names: list[str], capability: tuple[int, int], runs: bool) -> None:
        assert gpus.runs_on(names, capability) is runs

    def test_device_nodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (found,) = bad(gpus.check_nodes(tmp_path))
        assert "nvidia-modprobe" in found.remedy
        for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
            (tmp_path / name).touch()
        assert bad(gpus.check_nodes(tmp_path)) == []
        monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).name != "nvidia0")
        (found,) = bad(gpus.check_nodes(tmp_path))
        assert "usermod -aG" in found.remedy
        assert "nvidia0" in found.text

    def test_windows_has_one_node_for_all_gpus(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """WSL 2: https://docs.nvidia.com/cuda/wsl-user-guide."""
        (tmp_path / "dxg").touch()
        assert bad(gpus.check_nodes(tmp_path)) == []
        monkeypatch.setattr(os, "access", lambda path, _mode: False)
        (found,) = bad(gpus.check_nodes(tmp_path))
        assert "dxg" in found.text

    def test_cards_on_the_bus(self, tmp_path: Path) -> None:
        for name, vendor, kind in (
            ("a", "0x10de", "0x030200"),
            ("b", "0x10de", "0x040300"),
            ("c", "0x8086", "0x030000"),
        ):
            (tmp_path / name).mkdir()
            (tmp_path / name / "vendor").write_text(f"{vendor}\n")
            (tmp_path / name / "class").write_text(f"{kind}\n")
        (tmp_path / "empty").mkdir()
        assert gpus.cards_on_the_bus(tmp_path) == 1


def test_kernels_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferd_kernels.cpu.library.why_missing", lambda: "not built")
    (found,) = bad(compiled.check(what(tmp_path)))
    assert (found.level, found.remedy) == ("warning", "make kernels")
    native = Config(engine=Engine(linear="native"))
    assert [f.level for f in bad(compiled.check(what(tmp_path, native)))] == ["failure"]
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert [f.remedy for f in bad(compiled.check(what(tmp_path)))] == ["install gcc", "install gcc, then make kernels"]


def test_plugins_that_fail_and_pins_that_name_none(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "broken_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inferd]\nbroken = broken_plugin\n")
    (site / "broken_plugin.py").write_text("import nowhere_to_be_found\n")
    sys.path.insert(0, str(site))
    try:
        config = Config(plugins=Plugins(attention="tosch"))
        found = bad(plugins.check(what(tmp_path, config)))
    finally:
        sys.path.remove(str(site))
    assert {f.level for f in found} == {"warning", "failure"}
    assert any("nowhere_to_be_found" in f.text and "disable broken" in f.remedy for f in found)
    assert any("plugins.attention" in f.text and "torch" in f.text for f in found)


def test_models_are_opened(tmp_path: Path) -> None:
    good, cut = tiny_llama(tmp_path / "good"), tiny_llama(tmp_path / "cut")
    shard = next(cut.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    named = {"good": Model(path=str(good)), "cut": Model(path=str(cut)), "gone": Model(path="/gone.gguf")}
    findings = list(models.check(what(tmp_path, Config(models=named))))
    assert any(f.level == "ok" and f.text.startswith("good:") for f in findings)
    failed = {f.text.split(":")[0]: f.remedy for f in findings if f.level == "failure"}
    assert failed == {"cut": "set models.cut.path", "gone": "set models.gone.path"}
    assert any("inferd pull smollm2-135m" in f.remedy for f in findings)
