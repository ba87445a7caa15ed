"""Starting on one's own folder and sockets only, and ending in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_client import protocol as p
from tests.front.harness import WAIT_S, Raw, daemon, eventually, launch, worker_pid


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: socket paths are limited."""
    with tempfile.TemporaryDirectory(prefix="infd") as folder:
        yield Path(folder)


def start(runtime: Path, config: object = None) -> subprocess.CompletedProcess[str]:
    """Run a daemon that is expected not to start."""
    arguments = ["--runtime", str(runtime), "--config", json.dumps(config or {})]
    command = [sys.executable, "-m", "inferd.front.fake", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


class TestStart:
    def test_a_second_daemon_names_the_first_and_leaves_it_alone(self) -> None:
        with daemon() as running:
            client = running.client()
            second = start(running.runtime)
            assert second.returncode == 75
            assert f"pid {running.pid}" in second.stderr
            assert second.stderr.count("\n") == 1
            assert client.run("still mine")[0] == "still mine"
            assert running.client().run("for new clients too")[0] == "for new clients too"

    def test_everything_in_the_folder_is_ours_alone(self) -> None:
        with daemon() as running:
            running.client().run("now all children have bound")
            modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in running.runtime.iterdir()}
            assert {"data.sock", "control.sock", "events.sock", "inferd.lock", "e1.sock", "t1.sock"} <= modes.keys()
            assert set(modes.values()) == {0o600}

    def test_sockets_are_never_open_for_a_moment(self) -> None:
        """Watch the folder while the daemon starts: no file is ever seen with another mode."""
        seen: dict[str, set[int]] = {}
        with tempfile.TemporaryDirectory(prefix="infd") as folder:
            runtime = Path(folder) / "run"
            runtime.mkdir(mode=0o700)
            command = [sys.executable, "-m", "inferd.front.fake", "--runtime", str(runtime)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, umask=0)
            assert process.stdout is not None
            ready = False
            while not ready:
                ready = _readable(process.stdout.fileno())
                for path in runtime.iterdir():
                    try:
                        seen.setdefault(path.name, set()).add(stat.S_IMODE(path.lstat().st_mode))
                    except FileNotFoundError:
                        continue
            process.terminate()
            process.wait()
            process.stdout.close()
        assert "data.sock" in seen
        assert {mode for modes in seen.values() for mode in modes} == {0o600}

    @pytest.mark.parametrize(("length", "works"), [(106, True), (107, True), (108, False)])
    def test_the_longest_socket_path(self, short: Path, length: int, works: bool) -> None:
        room = length - len(str(short)) - len("/") - len("/control.sock")
        runtime = short / ("x" * room)
        if works:
            running = launch(runtime)
            try:
                assert running.client().run("long")[0] == "long"
            finally:
                running.process.kill()
                running.process.wait()
                running.clients[0].close()
        else:
            refused = start(runtime)
            assert refused.returncode == 78
            assert "107" in refused.stderr
            assert not runtime.exists()

    def test_unsafe_folders_are_refused(self, short: Path) -> None:
        open_to_all, plain_file, linked = short / "open", short / "file", short / "link"
        open_to_all.mkdir()
        open_to_all.chmod(0o755)
        plain_file.touch()
        (short / "real").mkdir(mode=0o700)
        linked.symlink_to(short / "real")
        for folder in (open_to_all, plain_file, linked, short / "absent" / "run"):
            refused = start(folder)
            assert refused.returncode == 78, folder
            assert str(folder) in refused.stderr or str(folder.parent) in refused.stderr
            assert refused.stderr.count("\n") == 1

    def test_a_lock_file_that_is_a_link_is_refused(self, short: Path) -> None:
        runtime = short / "run"
        runtime.mkdir(mode=0o700)
        (short / "victim").write_text("precious")
        (runtime / "inferd.lock").symlink_to(short / "victim")
        assert start(runtime).returncode == 78
        assert (short / "victim").read_text() == "precious"

    def test_it_loads_nothing_heavy(self, short: Path) -> None:
        """The fake daemon and its children run on the base install: pyzmq and msgspec."""
        script = "import sys; sys.modules.update(dict.fromkeys({heavy}, None)); from {module} import {name}"
        heavy = ["torch", "numpy", "tokenizers", "jinja2", "structlog", "pluggy", "click", "platformdirs", "psutil"]
        for module, name in (
            ("inferd.front.fake", "main"),
            ("inferd.front.fake_text", "main"),
            ("inferd.engine.scripted", "build"),
        ):
            subprocess.run([sys.executable, "-c", script.format(heavy=heavy, module=module, name=name)], check=True)

    def test_it_serves_without_structlog(self, short: Path) -> None:
        code = "import sys; sys.modules['structlog'] = None; from inferd.front.fake import main; sys.exit(main())"
        runtime = short / "run"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "--runtime", str(runtime)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        client = Raw(runtime)
        assert client.run("plain secret")[0] == "plain secret"
        client.close()
        process.terminate()
        lines = [json.loads(line) for line in process.communicate()[1].splitlines()]
        assert next(line for line in lines if line["event"] == "request")["output_tokens"] == 13
        assert "secret" not in json.dumps(lines)


class TestServe:
    """`inferd serve` itself, up to where it would load a model."""

    def serve(self, folder: Path, model: str | None, **config: object) -> subprocess.CompletedProcess[str]:
        code = (
            "import json, sys; from pathlib import Path; import msgspec; from inferd.config.schema import Config\n"
            "from inferd.config.paths import RuntimePaths; from inferd.front.main import serve\n"
            "base = Path(sys.argv[1])\n"
            "paths = RuntimePaths(runtime=base / 'run', models=base, cache=base, state=base)\n"
            "config = msgspec.convert(json.loads(sys.argv[3]), Config)\n"
            "sys.exit(serve(config, model=sys.argv[2] or None, paths=paths))"
        )
        command = [sys.executable, "-c", code, str(folder), model or "", json.dumps(config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    @pytest.mark.parametrize("model", [None, "smollm2-135m", "absent.gguf", "./absent"])
    def test_an_absent_model_is_one_line_with_the_remedy(self, short: Path, model: str | None) -> None:
        ended = self.serve(short, model)
        assert ended.returncode == 66
        assert ended.stderr.count("\n") == 1
        assert ("inferd pull smollm2-135m" if model in (None, "smollm2-135m") else "absent") in ended.stderr
        assert not (short / "run").exists()


class TestStop:
    def test_sigterm_lets_twenty_streams_finish(self) -> None:
        with daemon(delay_s=0.05, max_sequences=20) as running:
            clients = [running.client(f"c{i}") for i in range(4)]
            worker = worker_pid(clients[0])
            streams = [(c, c.generate(f"stream {i} of this client", id=f"s{i}")) for c in clients for i in range(5)]
            for client, request in streams:
                client.until(request, p.Tokens)
            os.kill(worker, signal.SIGSTOP)  # so that none ends meanwhile
            running.signal(signal.SIGTERM)
            eventually(lambda: clients[0].status().state == "draining")
            late = clients[0].finish(clients[0].generate("late", id="late"))
            assert (late.code, late.retry_safe) == (p.Code.SERVER_SHUTDOWN, True)
            os.kill(worker, signal.SIGCONT)
            for client, request in streams:
                assert client.finish(request).reason == "stop"
                assert client.text(request) == f"stream {request[1]} of this client"
            assert running.wait() == 0

    def test_what_does_not_finish_in_time_is_told(self) -> None:
        with daemon(delay_s=0.02, max_sequences=1, config={"daemon": {"drain_s": 0.3}}) as running:
            client = running.client()
            worker = worker_pid(client)
            begun, waiting = client.generate("abc", ignore_eos=True), client.generate("w")
            client.until(waiting, p.Accepted)
            client.until(begun, p.Tokens)
            running.signal(signal.SIGTERM)
            first, second = client.finish(begun), client.finish(waiting)
            assert first.code == second.code == p.Code.SERVER_SHUTDOWN
            assert (first.retry_safe, second.retry_safe) == (False, True)
            assert running.wait() == 0
            assert not Path(f"/proc/{worker}").exists()
            assert [path.name for path in running.runtime.iterdir()] == ["inferd.lock"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_the_second_signal_means_now(self, number: int) -> None:
        with daemon(delay_s=0.02) as running:
            client = running.client()
            worker_pid(client)
            request = client.generate("abc", ignore_eos=True)
            client.until(request, p.Tokens)
            running.signal(number)
            eventually(lambda: client.status().state == "draining")
            running.signal(number)
            assert client.finish(request).code == p.Code.SERVER_SHUTDOWN
            assert running.wait() == 0

    def test_during_a_load(self) -> None:
        with daemon(load_s=600, config={"daemon": {"drain_s": 0.2}}) as running:
            client = running.client()
            request = client.generate("x")
            client.until(request, p.Progress)
            running.signal(signal.SIGTERM)
            assert client.finish(request).code == p.Code.SERVER_SHUTDOWN
            assert running.wait() == 0

    def test_drain_over_the_control_socket(self) -> None:
        with daemon() as running:
            client = running.client()
            worker_pid(client)
            assert client.call(p.Drain(id="d", timeout_s=5)).detail == "draining"
            assert running.wait() == 0

    def test_a_client_that_does_not_read_cannot_hold_it_up(self) -> None:
        faults = [{"match": "huge", "kind": "huge"}]
        with daemon(faults=faults, context=10**8, config={"daemon": {"drain_s": 0.2}}) as running:
            client = running.client()
            worker_pid(client)
            client.generate("huge", ignore_eos=True)
            time.sleep(0.5)
            running.signal(signal.SIGTERM)
            assert running.wait() == 0


class TestSystemd:
    def test_what_it_is_told(self, short: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(short / "notify"))
            notify.settimeout(WAIT_S)
            env = {"NOTIFY_SOCKET": str(short / "notify"), "WATCHDOG_USEC": "400000"}
            faults = [{"match": "hang", "kind": "hang"}]
            with daemon(env=env, load_s=0.8, faults=faults, config={"daemon": {"stall_s": 1.5}}) as running:
                told = _told(notify, "READY=1")
                loading = told.index("READY=1")
                assert "EXTEND_TIMEOUT_USEC=15000000" in told[:loading]
                assert any(t.startswith("STATUS=fake: loading") for t in told[:loading])
                client = running.client()
                assert client.status().ready
                assert _told(notify, "WATCHDOG=1")
                client.generate("hang")
                told = _told(notify, "STATUS=fake: restarting")
                assert told.count("WATCHDOG=1") < 11, "from half of these three seconds on there is no more of them"
                running.signal(signal.SIGTERM)
                assert _told(notify, "STOPPING=1")

    def test_a_start_that_cannot_succeed_ends_with_the_reason(self, short: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind("\0" + str(short / "abstract"))
            notify.settimeout(WAIT_S)
            with daemon(env={"NOTIFY_SOCKET": "@" + str(short / "abstract")}, fail_at_load=9) as running:
                assert running.wait() == 1
                assert "cannot serve fake: model.gguf: tensor blk.0 is missing" in running.logged().splitlines()[-1]
                told = _told(notify, "STOPPING=1")
                assert "READY=1" not in told
                assert any(t.startswith("STATUS=fake: failed") and "blk.0 is missing" in t for t in told)

    def test_a_model_that_fails_once_it_has_served_does_not_end_the_service(self, short: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(short / "notify"))
            with daemon(env={"NOTIFY_SOCKET": str(short / "notify")}) as running:
                client = running.client()
                for _ in range(3):
                    pid = worker_pid(client)
                    os.kill(pid, signal.SIGKILL)
                    eventually(lambda pid=pid: client.status().models[0].pid != pid)
                eventually(lambda: client.status().models[0].state == "failed")
                assert running.process.poll() is None

    def test_a_drain_may_take_as_long_as_it_is_set_to(self, short: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(short / "notify"))
            notify.settimeout(WAIT_S)
            env = {"NOTIFY_SOCKET": str(short / "notify")}
            with daemon(env=env, config={"daemon": {"drain_s": 300}}) as running:
                worker_pid(running.client())
                running.signal(signal.SIGTERM)
                assert _told(notify, "STOPPING=1")[-1] == "STOPPING=1\nEXTEND_TIMEOUT_USEC=315000000"


def _told(notify: socket.socket, until: str) -> list[str]:
    found: list[str] = []
    while not (found and found[-1].startswith(until)):
        found.append(notify.recv(4096).decode())
    return found


def _readable(fd: int) -> bool:
    import select

    return bool(select.select([fd], [], [], 0)[0])
