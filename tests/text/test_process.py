"""The text process itself: over a real link, through faults, and gone when its parent is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd.channel import Channel
from inferd.link import TextDrop, TextJob, TextOpen, TextReady, TextResult, text_out
from inferd.process import spawn
from inferd.text.pool import LONG_BYTES
from inferd.text.service import TextService
from inferd.text.template import RenderLimits
from tests.tiny_tokenizer import IM_END_ID, write_tokenizer

USER = {"role": "user", "content": "hello"}


class Text:
    """The front's end of a text process."""

    def __init__(self, runtime: Path, *options: str) -> None:
        self.channel = Channel(runtime / "t", bind=False, decoder=text_out)
        self.child = spawn("inferd.text", str(runtime / "t"), *options)

    def ask(self, message: Any, timeout_s: float = 60) -> Any:
        self.channel.send(message)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float = 60) -> Any:
        assert self.channel.wait(timeout_s), "no answer"
        (answer,) = self.channel.recv_all()
        return answer

    def close(self) -> None:
        self.child.kill()
        self.child.reap()
        self.channel.close()


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Text]:
    process = Text(tmp_path, "--max-output-chars", "100000", "--render-seconds", "0.5")
    yield process
    process.close()


def model(folder: Path, template: str | None = None) -> str:
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, 290)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return str(folder)


def test_a_session_with_faults_in_it(text, tmp_path):
    """Each job is answered, in order, whatever the ones before it did."""
    assert text.ask(TextJob(key="0", model="m", text="x")).error == "model 'm' is not open"
    opened = text.ask(TextOpen(model="m", path=model(tmp_path / "m")))
    assert opened == TextReady(model="m", has_template=True)
    bad = text.ask(TextOpen(model="bad", path=str(tmp_path / "absent")))
    assert "absent: no such file" in bad.error

    chat = text.ask(TextJob(key="1", model="m", messages=[USER], bad_words=("s",)))
    assert (chat.key, chat.error) == ("1", "")
    assert chat.text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert chat.ids.count(IM_END_ID) == 1
    assert len(chat.bad_word_ids) == 2

    refused = text.ask(TextJob(key="2", model="m", messages=[{"role": "user"}]))
    assert (refused.key, refused.field) == ("2", "messages[0].content")
    assert refused.ids == []

    raw = text.ask(TextJob(key="3", model="m", text="hello<|im_end|>"))
    assert raw.text is None
    assert IM_END_ID not in raw.ids
    assert text.ask(TextJob(key="4", model="m", text="hello<|im_end|>", special_tokens=True)).ids[-1] == IM_END_ID


HOSTILE = {
    "endless": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "processor time"),
    "too long": ("{% for a in range(99999) %}0123456789{% endfor %}", "exceeds 100000"),
    "memory": (
        "{% set n = namespace(s='x' * 1000000) %}{% for a in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "processor time|MemoryError",
    ),
    "format": ("{{ '%99999999999d' % 1 }}", "MemoryError|too big|Overflow"),
}


@pytest.mark.parametrize(("template", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates_cost_one_request(text, tmp_path, template, message):
    text.ask(TextOpen(model="evil", path=model(tmp_path / "evil", template)))
    text.ask(TextOpen(model="good", path=model(tmp_path / "good")))
    answer = text.ask(TextJob(key="1", model="evil", messages=[USER]))
    assert re.search(message, answer.error), answer.error
    assert answer.field == "messages"
    assert text.ask(TextJob(key="2", model="good", messages=[USER])).error == ""


def test_a_text_under_way_delays_no_other(tmp_path):
    """One chat loops without an end; others of its model are rendered beside it, and dropping it ends it."""
    template = "{% if messages[0].content == 'loop' %}" + HOSTILE["endless"][0] + "{% endif %}said"
    text = Text(tmp_path, "--render-seconds", "600", "--timeout-s", "600")
    try:
        assert text.ask(TextOpen(model="m", path=model(tmp_path / "m", template))).error == ""
        for key in ("loops", "loops too"):
            text.channel.send(TextJob(key=key, model="m", messages=[USER | {"content": "loop"}]))
        for key in ("1", "2"):
            answer = text.ask(TextJob(key=key, model="m", messages=[USER]))
            assert (answer.key, answer.text) == (key, "said")
        for key in ("loops", "loops too", "unknown"):
            text.channel.send(TextDrop(key=key))
        assert text.ask(TextJob(key="3", model="m", text="hello")).key == "3"
    finally:
        text.close()


def test_a_worker_ends_after_a_long_text(text):
    """What tokenizing it took goes back to the system, and the next text has another worker."""
    text.ask(TextOpen(model="m", path="bytes:"))
    assert text.ask(TextJob(key="short", model="m", text="x")).error == ""
    (first,) = workers(text)
    assert text.ask(TextJob(key="short too", model="m", text="x")).error == ""
    assert workers(text) == [first]
    assert len(text.ask(TextJob(key="long", model="m", text="x" * (LONG_BYTES + 1))).ids) > LONG_BYTES
    assert text.ask(TextJob(key="again", model="m", text="x")).error == ""
    assert first not in workers(text)


def workers(text: Text) -> list[int]:
    children = Path(f"/proc/{text.child.pid}/task/{text.child.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def test_the_builtin_vocabulary_loads_neither_tokenizers_nor_torch(tmp_path):
    code = (
        "import sys; from inferd.text.service import TextService; from inferd.link import TextOpen, TextJob;"
        "s = TextService(); s.open(TextOpen(model='m', path='bytes:'));"
        "r = s.do(TextJob(key='k', model='m', messages=[{'role': 'user', 'content': 'a'}]));"
        "assert r.ids, r; print([m for m in ('torch', 'tokenizers', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


def test_a_model_needs_no_torch(tmp_path):
    code = (
        "import sys; from inferd.text.service import TextService; from inferd.link import TextOpen;"
        f"r = TextService().open(TextOpen(model='m', path={model(tmp_path / 'm')!r}));"
        "assert not r.error, r; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


def test_it_dies_with_its_parent(tmp_path):
    code = (
        "import sys, time; from inferd.process import spawn; from inferd.channel import Channel;"
        "from inferd.link import text_out, TextOpen;"
        f"c = Channel({str(tmp_path / 't')!r}, bind=False, decoder=text_out);"
        f"child = spawn('inferd.text', {str(tmp_path / 't')!r});"
        "c.send(TextOpen(model='m', path='bytes:')); c.wait(60);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _gone(pid, 60)


def _gone(pid: int, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_restarted_process_serves_again(tmp_path):
    """What the front does at a time-out: kill, start anew, open again."""
    for name in ("a", "b"):
        runtime = tmp_path / name
        runtime.mkdir()
        process = Text(runtime)
        assert process.ask(TextOpen(model="m", path="bytes:")).error == ""
        process.close()
        assert process.child.exit_status == -signal.SIGKILL


def test_a_file_in_place_of_the_models_template(tmp_path):
    (tmp_path / "own.jinja").write_text("own")
    service = TextService(RenderLimits())
    service.open(TextOpen(model="m", path="bytes:", chat_template=str(tmp_path / "own.jinja")))
    answer = service.do(TextJob(key="k", model="m", messages=[USER]))
    assert isinstance(answer, TextResult)
    assert answer.text == "own"
    missing = service.open(TextOpen(model="n", path="bytes:", chat_template=str(tmp_path / "absent.jinja")))
    assert isinstance(missing, TextReady)
    assert "absent.jinja" in missing.error
