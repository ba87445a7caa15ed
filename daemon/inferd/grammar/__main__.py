"""The grammar process: `python -m inferd.grammar LINK SECONDS`. It tries one grammar at a time."""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()  # before anything that takes time

import signal
import sys

from inferd.channel import Channel
from inferd.grammar.trial import try_grammar
from inferd.link import GrammarResult, grammar_in
from inferd.text.limits import limit_memory

MEMORY = 1 << 30
"""Bytes of address space that grammars may take in all."""


def main(link: str, seconds: float) -> None:
    """Serve. A grammar that takes more than `seconds` of processor time ends this process by SIGPROF."""
    limit_memory(MEMORY)
    channel = Channel(link, bind=True, decoder=grammar_in)
    while True:
        channel.wait()
        for job in channel.recv_all():
            signal.setitimer(signal.ITIMER_PROF, seconds)
            error = try_grammar(job.grammar)
            signal.setitimer(signal.ITIMER_PROF, 0)
            channel.send(GrammarResult(key=job.key, error=error))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
