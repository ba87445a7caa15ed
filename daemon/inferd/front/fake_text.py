"""The text process of the fake daemon: the byte vocabulary and its one template, no jinja2.

A text that contains `<hang>` makes its worker hang, one with `<die>` makes it die, as a bad template could.
"""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from inferd.link import TextJob, TextOpen, TextReady, TextResult
from inferd.load.vocab_bytes import byte_vocabulary
from inferd.text.pool import serve


def render(messages: list[Any], tools: list[Any] | None = None, arguments: Mapping[str, Any] | None = None) -> str:
    """Return what the template of the byte vocabulary makes of a chat.

    Beyond that template it shows template arguments, tools and tool calls, the latter as Hermes writes them.
    """
    head = [f"<|im_start|>{name}\n{json.dumps(value)}<|im_end|>\n" for name, value in (arguments or {}).items()]
    if tools:
        head.append(f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n")
    turns = [f"<|im_start|>{m['role']}\n{m.get('content') or ''}{_calls(m)}<|im_end|>\n" for m in messages]
    return "".join(head + turns) + "<|im_start|>assistant\n"


def _calls(message: dict[str, Any]) -> str:
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or ()]
    return "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def opened(message: TextOpen) -> TextReady:
    return TextReady(model=message.model, has_template=True)


def answer(job: TextJob) -> TextResult:
    """Do one job."""
    chat = None if job.messages is None else render(job.messages, job.tools, job.template_args)
    text = job.text or "" if chat is None else chat
    if "<hang>" in text:
        time.sleep(3600)
    if "<die>" in text:
        os._exit(9)
    encode = byte_vocabulary().codec.encode
    try:
        ids = encode(text, special_tokens=job.special_tokens or chat is not None)
    except UnicodeEncodeError as error:
        return TextResult(key=job.key, error=f"not Unicode text: {error.reason}", field="prompt")
    words = tuple(tuple(encode(word, special_tokens=False)) for word in job.bad_words)
    return TextResult(key=job.key, ids=ids, text=chat, bad_word_ids=words)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m inferd.front.fake_text")
    parser.add_argument("link")
    parser.add_argument("--timeout-s", type=float, default=10.0)
    options, _ = parser.parse_known_args(argv)
    serve(options.link, opened, answer, options.timeout_s)


if __name__ == "__main__":
    main(sys.argv[1:])
