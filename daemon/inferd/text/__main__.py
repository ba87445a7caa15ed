"""The text process: `python -m inferd.text LINK`. It serves one job at a time and dies with its parent."""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()  # before anything that takes time

import argparse

from inferd.channel import Channel
from inferd.link import text_in
from inferd.text.limits import limit_memory
from inferd.text.service import TextService
from inferd.text.template import RenderLimits


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m inferd.text")
    parser.add_argument("link", help="ipc path to bind")
    parser.add_argument("--max-output-chars", type=int, default=RenderLimits().chars)
    parser.add_argument("--render-seconds", type=float, default=RenderLimits().seconds)
    options = parser.parse_args(argv)
    limit_memory()
    channel = Channel(options.link, bind=True, decoder=text_in)
    service = TextService(RenderLimits(options.max_output_chars, options.render_seconds))
    while True:
        channel.wait()
        for message in channel.recv_all():
            channel.send(service.handle(message))


if __name__ == "__main__":
    main()
