"""Numbers as people read them; what is unknown is `n/a`, never 0."""

from __future__ import annotations

from collections.abc import Sequence

from inferd_tui.escape import clean_line

NA = "n/a"


def size(count: int | None) -> str:
    """Bytes with a binary unit."""
    if count is None:
        return NA
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return NA
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def number(value: float | None) -> str:
    """A whole number, or n/a."""
    return NA if value is None else f"{value:,.0f}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines, two spaces apart; every cell is made safe for a terminal."""
    safe = [[clean_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *safe, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in (headers, *safe)]


def short_size(count: int | None) -> str:
    """Bytes in a few characters: 138M, 1.2G."""
    if count is None:
        return NA
    value, units = float(count), iter("BKMGT")
    unit = next(units)
    while abs(value) >= 1000 and unit != "T":
        value, unit = value / 1024, next(units)
    return f"{value:.1f}{unit}" if abs(value) < 10 and unit != "B" else f"{value:.0f}{unit}"


def rate(value: float | None) -> str:
    """Something per second."""
    if value is None:
        return NA
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def money(value: float | None, currency: str) -> str:
    """An amount to three digits, with its currency where one is configured."""
    if value is None:
        return NA
    figure = f"{value:.2f}" if value >= 1 else f"{value:.3g}"
    return f"{figure} {currency}".rstrip()


def quantity(value: float | None, unit: str) -> str:
    """A large number with a decimal prefix: 51.3 GB/s."""
    if value is None:
        return NA
    prefixes = iter("kMGTP")
    prefix = ""
    while abs(value) >= 999.5 and prefix != "P":  # what three digits would round up to 1e+03
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g} {prefix}{unit}"


def percent(part: float | None, whole: float | None) -> str:
    """A share; n/a where there is no whole."""
    return NA if part is None or not whole else f"{100 * part / whole:.1f}%"
