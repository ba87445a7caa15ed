"""The text process of the fake daemon: the byte vocabulary and its one template, no jinja2.

A text that contains `<hang>` makes it hang, one with `<die>` makes it die, as a bad template could.
"""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from inferd.channel import Channel
from inferd.link import TextIn, TextJob, TextOpen, TextReady, TextResult, text_in
from inferd.load.vocab_bytes import byte_vocabulary


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


def answer(message: TextIn) -> TextReady | TextResult:
    """Do one message."""
    if isinstance(message, TextOpen):
        return TextReady(model=message.model, has_template=True)
    return _job(message)


def _job(job: TextJob) -> TextResult:
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


def main(link: str) -> None:
    channel = Channel(link, bind=True, decoder=text_in)
    while True:
        channel.wait()
        for message in channel.recv_all():
            channel.send(answer(message))


if __name__ == "__main__":
    main(sys.argv[1])
