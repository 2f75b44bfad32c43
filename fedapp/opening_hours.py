"""Opening hours: days of the week and a span of the day, such as ``mon-fri 18:00-24:00``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"([a-z]{3})(?:-([a-z]{3}))? (\d\d):(\d\d)-(\d\d):(\d\d)")
_DAY = 24 * 60  # minutes


class Span(NamedTuple):
    """Days by number, Monday 0, and minutes from midnight; ``end`` is not part of it."""

    days: frozenset[int]
    start: int
    end: int


def parse_span(text: str) -> Span:
    """Read one span; ``fri-mon`` goes over the weekend, ``20:00-06:00`` over midnight.

    Raises
    ------
    ValueError
        If it is none.
    """
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None or not {match[1], match[2] or match[1]} <= set(DAYS):
        raise ValueError(
            "expected days and times such as 'mon-fri 18:00-24:00' or 'sun 00:00-24:00'"
        )
    first, last = DAYS.index(match[1]), DAYS.index(match[2] or match[1])
    start, end = (_minutes(match[i], match[i + 1]) for i in (3, 5))
    if start in (end, _DAY):
        raise ValueError("a span ends after it begins; the whole day is 00:00-24:00")
    return Span(frozenset((first + i) % 7 for i in range((last - first) % 7 + 1)), start, end)


def is_open(spans: Iterable[Span], now: datetime) -> bool:
    """Whether ``now`` is within one of the spans, which count from their days."""
    day, minute = now.weekday(), now.hour * 60 + now.minute
    for span in spans:
        if span.start < span.end:
            inside = day in span.days and span.start <= minute < span.end
        else:  # over midnight: the morning belongs to the day before
            inside = (day in span.days and minute >= span.start) or (
                (day - 1) % 7 in span.days and minute < span.end
            )
        if inside:
            return True
    return False


def _minutes(hours: str, minutes: str) -> int:
    total = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or total > _DAY:
        raise ValueError("a time of day is 00:00 to 24:00")
    return total
