"""The text process: `python -m inferd.text LINK`. It deals jobs out to forked workers and dies with its parent."""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()  # before anything that takes time

import argparse

from inferd.text.limits import limit_memory
from inferd.text.pool import serve
from inferd.text.service import TextService
from inferd.text.template import RenderLimits


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m inferd.text")
    parser.add_argument("link", help="ipc path to bind")
    parser.add_argument("--max-output-chars", type=int, default=RenderLimits().chars)
    parser.add_argument("--render-seconds", type=float, default=RenderLimits().seconds)
    parser.add_argument("--timeout-s", type=float, default=10.0)
    options = parser.parse_args(argv)
    limit_memory()
    service = TextService(RenderLimits(options.max_output_chars, options.render_seconds))
    serve(options.link, service.open, service.do, options.timeout_s)


if __name__ == "__main__":
    main()
