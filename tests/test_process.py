"""Children that die with their parent, and the channel to them."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.channel import Channel, ChannelError
from inferd.link import Idle, Stop, Submit, engine_in, engine_out
from inferd.process import describe_exit, spawn
from inferd_client.protocol import SamplingParams
from tests.front.harness import alive, eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="infd") as name:
        yield Path(name)


def test_a_child_inherits_nothing_and_leads_its_own_group(folder: Path) -> None:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    report = folder / "report"
    code = f"""import os, subprocess
open({str(report)!r}, "w").write(str((os.getpgrp() == os.getpid(), sorted(os.listdir("/proc/self/fd")))))"""
    child = spawn("timeit", "-n", "1", "-r", "1", code)
    assert select.select([child.pidfd], [], [], 60)[0]
    assert child.exit_status == 0
    assert child.reap() == 0
    os.close(lock)
    leads, descriptors = eval(report.read_text())
    assert leads
    assert set(descriptors) <= {"0", "1", "2", "3", "4"}  # 3 and 4: the report and the listing itself


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent_even_inside_a_native_call(end: int, folder: Path) -> None:
    (folder / "sitting_child.py").write_text(
        "from inferd.process import guard\n"
        "guard()\n"
        "import ctypes, os\n"
        "print(os.getpid(), flush=True)\n"
        "ctypes.PyDLL(None).sleep(600)\n"  # keeps the interpreter lock: no Python code runs any more
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", "import inferd.process as p, time; c = p.spawn('sitting_child'); time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(end)
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not alive(child))


def test_reap_ends_the_whole_group(folder: Path) -> None:
    code = f"""import subprocess, time
open({str(folder / "pid")!r}, "w").write(str(subprocess.Popen(["sleep", "600"]).pid) + "\\n")
time.sleep(600)"""
    child = spawn("timeit", "-n", "1", "-r", "1", code)
    eventually(lambda: (folder / "pid").exists() and (folder / "pid").read_text().endswith("\n"))
    grandchild = int((folder / "pid").read_text())
    assert child.exit_status is None
    assert child.reap() == -signal.SIGKILL
    eventually(lambda: not alive(grandchild))
    child.kill()  # harmless: the pid is no longer ours to kill


def test_exits_are_described() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGSEGV) == "SIGSEGV"
    assert describe_exit(-99) == "signal 99"


class TestChannel:
    def test_messages_sent_before_the_child_binds_arrive_in_order(self, folder: Path) -> None:
        path = folder / "link"
        front = Channel(path, bind=False, decoder=engine_out)
        for i in range(5000):
            front.send(Submit(key=str(i), client="", prompt=[i], sampling=SamplingParams()))
        front.send(Stop())
        child = Channel(path, bind=True, decoder=engine_in)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        got: list[object] = []
        while not got or not isinstance(got[-1], Stop):
            assert child.wait(60)
            got += child.recv_all()
        assert [m.key for m in got[:-1] if isinstance(m, Submit)] == [str(i) for i in range(5000)]
        child.close()
        front.close()
        assert not path.exists()

    def test_a_child_that_ends_before_a_busy_front_reads_loses_nothing(self, folder: Path) -> None:
        code = (
            "import sys; from inferd.channel import Channel; from inferd.link import Idle, engine_in\n"
            "c = Channel(sys.argv[1], bind=True, decoder=engine_in)\n"
            "for i in range(3500): c.send(Idle(now=float(i)))\n"
            "c.close()"
        )
        front = Channel(folder / "link", bind=False, decoder=engine_out)
        child = subprocess.Popen([sys.executable, "-c", code, str(folder / "link")])
        assert child.wait(60) == 0
        seen: list[float] = []
        while len(seen) < 3500:
            assert front.wait(60)
            seen += [m.now for m in front.recv_all() if isinstance(m, Idle)]
        assert seen == [float(i) for i in range(3500)]
        front.close()

    def test_nonsense_is_an_error_of_the_channel(self, folder: Path) -> None:
        child = Channel(folder / "link", bind=True, decoder=engine_in)
        front = Channel(folder / "link", bind=False, decoder=engine_out)
        child.socket.send(b"\xc1")
        assert front.wait(60)
        with pytest.raises(ChannelError):
            front.recv_all()
        front.close()
        child.close()


def test_memory_that_was_freed_goes_back_to_the_system() -> None:
    code = """
import ctypes, os, sys
from inferd.process import return_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
last = libc.malloc(60_000)  # what keeps the heap from shrinking by itself
for block in blocks:
    libc.free(block)
before = resident()
return_freed_memory()
print(before - resident())
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(child.stdout) > 50_000_000
