"""What every plot sits in: a card with a title and a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedapp.report.markup import Html, element

_SWATCH = {
    "local-only": ("local", "4 2.5", ""),
    "received": ("received", None, '<circle cx="14" cy="6" r="3.6" fill="var(--received)"/>'),
    "personal": (
        "personal",
        None,
        '<path d="M14 1.8 18.2 6 14 10.2 9.8 6z" fill="var(--personal)"/>',
    ),
    "first": ("first", None, '<circle cx="14" cy="6" r="3.6" fill="var(--first)"/>'),
    "second": (
        "second",
        "5 1.6",
        '<path d="M14 1.8 18.2 6 14 10.2 9.8 6z" fill="var(--second)"/>',
    ),
    "third": ("third", "2 2", '<rect x="11" y="3" width="6" height="6" fill="var(--third)"/>'),
}


def card(title: object, above: Html | None, svg: Html, classes: str = "card") -> Html:
    caption = element("figcaption", element("h3", title), above)
    return element("figure", caption, svg, class_=classes)


def legend(entries: Sequence[tuple[str, str]], bars: bool = False) -> Html:
    draw: Callable[[str], Html] = _bar_swatch if bars else _line_swatch
    return element(
        "ul", *(element("li", draw(role), label) for role, label in entries), class_="legend"
    )


def _line_swatch(key: str) -> Html:
    role, dash, marker = _SWATCH[key]
    line = element(
        "line",
        x1=0,
        x2=28,
        y1=6,
        y2=6,
        stroke=f"var(--{role})",
        stroke_width=2.2,
        stroke_dasharray=dash,
    )
    return element("svg", line, Html(marker), viewBox="0 0 28 12", aria_hidden="true")


def _bar_swatch(role: str) -> Html:
    square = element("rect", x=8, width=12, height=12, rx=2, fill=f"var(--{role})")
    return element("svg", square, viewBox="0 0 28 12", aria_hidden="true")


def mean_series(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Mean over the sites that took part in the round."""
    by_round: dict[int, list[float]] = {}
    for curve in curves:
        for round_, value in curve:
            by_round.setdefault(round_, []).append(value)
    return [(r, math.fsum(v) / len(v)) for r, v in sorted(by_round.items())]
