"""Log lines: priorities for the journal, one line a request, and no text of anybody's prompt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inferd.log import PRIORITIES, to_journal, with_priority
from inferd_client import protocol as p
from tests.front.harness import daemon, eventually, worker_pid

WRITE = """
import sys
{before}
from inferd.config.schema import Log
from inferd.log import make_logger
log = make_logger(Log(level="debug", format="{format}"), "front")
log.debug("a"); log.info("b", id="x\\ny"); log.warning("c")
try:
    1 / 0
except ZeroDivisionError as error:
    log.error("d", exc_info=error)
"""


@pytest.mark.parametrize("before", ["", "sys.modules['structlog'] = None"], ids=["structlog", "standard"])
@pytest.mark.parametrize("format", ["json", "text"])
def test_the_journal_gets_a_priority_on_every_line(tmp_path: Path, before: str, format: str) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        found = os.fstat(stream.fileno())
        env = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        code = WRITE.format(before=before, format=format)
        subprocess.run([sys.executable, "-c", code], stderr=stream, env=env, check=True)
        stream.seek(0)
        lines = stream.read().splitlines()
    priorities = [int(re.match(r"<(\d)>", line)[1]) for line in lines]  # every line has one
    assert [*dict.fromkeys(priorities)] == [7, 6, 4, 3]
    if format == "json":
        assert len(lines) == 4
        assert json.loads(lines[1][3:])["id"] == "x\\ny"


def test_without_the_journal_there_are_none() -> None:
    assert not to_journal({})
    assert not to_journal({"JOURNAL_STREAM": "1:2"})
    done = subprocess.run(
        [sys.executable, "-c", WRITE.format(before="", format="json")],
        capture_output=True,
        text=True,
        env=os.environ | {"JOURNAL_STREAM": "1:2"},
        check=True,
    )
    assert all(line.startswith("{") for line in done.stderr.splitlines())


def test_each_line_of_a_traceback_has_the_priority() -> None:
    assert with_priority("a\nb", "error") == "<3>a\n<3>b"
    assert set(PRIORITIES) == {"debug", "info", "warning", "error"}


SECRET = "xyzzy-plugh"


def test_one_line_a_request_and_no_text_of_prompts_or_answers() -> None:
    """Whatever becomes of the request: done, refused, cancelled, lost with its engine or with its text process."""
    faults = [{"match": "die-now", "kind": "die"}]
    with daemon(faults=faults, delay_s=0.01, config={"text": {"timeout_s": 3.0}}) as running:
        client = running.client()
        worker_pid(client)
        ended = [
            client.run(f"{SECRET} done")[1],
            client.run(None, messages=[p.Message(role=SECRET, content=SECRET)], max_tokens=3)[1],
            client.run(f"{SECRET} refused", max_tokens=10**6)[1],
            client.run(f"{SECRET} <hang>")[1],
            client.run(f"{SECRET} <die>")[1],
            client.run(f"{SECRET} stop", stop=(SECRET,), bad_words=(SECRET,))[1],
        ]
        cancelled = client.generate(f"{SECRET} cancelled", ignore_eos=True)
        client.until(cancelled, p.Tokens)
        client.call(p.Cancel(id="c", request=cancelled))
        ended += [client.finish(cancelled), client.run(f"{SECRET} die-now")[1]]
        kinds = {getattr(e, "code", None) or e.reason for e in ended}
        assert {"length", "cancelled", "context_exceeded", "invalid_param", "engine_lost"} <= kinds
        lines = [json.loads(line) for line in running.logged().splitlines() if line.startswith("{")]
        requests = [line for line in lines if line["event"] == "request"]
        assert len(requests) == len(ended)
        assert {line["id"] for line in requests} == {e.id for e in ended}
        assert all(line["level"] == "info" and line["model"] == "fake" and "seconds" in line for line in requests)
        eventually(lambda: "engine lost" in running.logged())
        assert SECRET not in running.logged()
