"""The marks that panels draw with: one set for Unicode, one that is ASCII alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferd_tui.escape import clean_line


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every mark differs in shape, so that nothing is said by colour alone."""

    levels: str
    """Of a sparkline, lowest first."""
    full: str
    empty: str
    parts: str
    """Of the memory bar: weights, KV used, KV free, activations, process, others."""
    ascii: bool = False

    def text(self, text: str) -> str:
        """Make a string safe for one line of this terminal."""
        line = clean_line(text)
        return line.encode("ascii", "replace").decode() if self.ascii else line

    def spark(self, values: Sequence[float | None], width: int) -> str:
        """Draw the last `width` values against the highest of them; a gap where nothing is known."""
        shown = list(values)[-width:] if width > 0 else []
        highest = max((v for v in shown if v is not None), default=0.0)
        return "".join(" " if v is None else self._level(v / highest if highest else 0.0) for v in shown).rjust(width)

    def bar(self, share: float | None, width: int) -> str:
        """Draw a share of 0 to 1; anything above zero shows at least one cell."""
        filled = 0 if share is None else min(width, max(round(share * width), int(share > 0)))
        return self.full * filled + self.empty * (width - filled)

    def stack(self, shares: Sequence[float], width: int) -> str:
        """Draw the parts of a whole one after the other; what is left is empty."""
        edges, total = [0], 0.0
        for share in shares:
            total = min(1.0, total + max(0.0, share))
            edges.append(round(total * width))
        drawn = "".join(mark * (end - start) for mark, start, end in zip(self.parts, edges, edges[1:], strict=False))
        return drawn.ljust(width, self.empty)[: max(0, width)]

    def _level(self, share: float) -> str:
        last = len(self.levels) - 1
        return self.levels[max(0, min(last, round(share * last)))]


UNICODE = Glyphs(levels="▁▂▃▄▅▆▇█", full="█", empty="░", parts="█▓▒▟▚▞")
ASCII = Glyphs(levels="_.-:=+*#", full="#", empty=".", parts="WKkapo", ascii=True)
