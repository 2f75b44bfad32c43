"""Numbers as a person reads them."""

from __future__ import annotations

from fedapp.report.intervals import Interval

DASH = "–"


def decimal(value: float | None, digits: int = 2) -> str:
    """A share or score; an undefined one is a dash."""
    return DASH if value is None else f"{value:.{digits}f}"


def interval_text(interval: Interval | None) -> str:
    """``0.65–0.88``, or nothing."""
    return "" if interval is None else f"{interval.low:.2f}–{interval.high:.2f}"


def plural(count: int, singular: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{count:,} {singular}{'' if count == 1 else 's'}"


def size(count: float | None) -> str:
    """Bytes in decimal units."""
    if count is None:
        return DASH
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return (
                f"{count / factor:.3g} {unit}"
                if count < factor * 999
                else (f"{count / factor:,.0f} {unit}")
            )
    return f"{count:.0f} B"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return DASH
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
