"""A heat map over rounds: one row a peer, darker for more; refusals are crossed out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from fedapp.report.markup import Html, element, join
from fedapp.report.svg import ROLES, STYLE, new_figure, to_svg

Cells = Mapping[str, Mapping[int, float | None]]
"""Row -> round -> value in [0, 1]; None: there is something, but no number."""
Told = Mapping[str, Mapping[int, tuple[str, str | None]]]
"""Row -> round -> what its cell says when it is pointed at, and the id that it leads to."""

WIDTH, ROW, BELOW, ABOVE = 340.0, 22.0, 40.0, 6.0
LEFT, ACROSS = 0.31, 0.67  # of the width
LEVELS = 12  # shades; one path each, so that thousands of cells stay small
FAINTEST = 0.1  # opacity of a value of 0
_LONGEST_LABEL = 16
_GAP = 0.06  # between cells, in cells


def heat_map(
    cells: Cells,
    refused: Mapping[str, Collection[int]],
    rounds: tuple[int, int],
    *,
    key: str,
    title: str,
    told: Told | None = None,
) -> Html:
    """Draw one row for every name in ``cells``, the first on top.

    Parameters
    ----------
    cells : mapping of str to mapping of int to float or None
        A round without an entry stays empty.
    refused : mapping of str to rounds
        Crossed out, with or without a value.
    rounds : (int, int)
        First and last round of the horizontal axis.
    told : mapping of str to mapping of int to (str, str or None), optional
        Texts and targets of cells, drawn or not.
    """
    height = BELOW + ABOVE + ROW * len(cells)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = new_figure(WIDTH, height)
        axes = figure.add_axes((LEFT, BELOW / height, ACROSS, ROW * len(cells) / height))
        _frame(axes, list(cells), *rounds)
        for level in range(LEVELS):
            places = _places(cells, level)
            alpha = FAINTEST + (1 - FAINTEST) * level / (LEVELS - 1)
            _fill(axes, places, ROLES["received"], alpha)
        _fill(axes, _places(cells, None), ROLES["line"], 1.0)
        crosses = [(r, y) for y, row in enumerate(cells) for r in sorted(refused.get(row, ()))]
        if crosses:
            x, y = zip(*crosses, strict=True)
            (line,) = axes.plot(x, y, "x", color=ROLES["bad"], markersize=7, zorder=3)
            line.set(markeredgewidth=1.8, clip_on=False)
        svg = to_svg(figure, key, title, _spoken(cells, refused))
    return Html(svg.replace("</svg>", f"{_overlay(list(cells), rounds, told or {})}</svg>"))


def _overlay(rows: list[str], rounds: tuple[int, int], told: Told) -> Html:
    """Return an unseen square over every cell that has something to say, in units of cells.

    A link is not reached by the tab key: there are too many, and the table has the same rows.
    """
    first, last = rounds
    squares = []
    for y, row in enumerate(rows):
        for round_, (text, target) in sorted(told.get(row, {}).items()):
            square = element("path", element("title", text), d=f"M{round_ - first} {y}h1v1h-1z")
            link = {"href": f"#{target}", "tabindex": -1} if target else {}
            squares.append(element("a", square, **link) if target else square)
    if not squares:
        return Html("")
    scale = f"scale({ACROSS * WIDTH / (last - first + 1):.6g} {ROW:g})"
    transform = f"translate({LEFT * WIDTH:g} {ABOVE:g}) {scale}"
    return element(
        "g", join(*squares), class_="cells", transform=transform, fill="none", pointer_events="all"
    )


def shade(value: float) -> int:
    """Return the level, 0 to `LEVELS` - 1, that a value is drawn in."""
    return round(min(max(value, 0.0), 1.0) * (LEVELS - 1))


def _places(cells: Cells, level: int | None) -> list[tuple[int, int]]:
    return [
        (round_, y)
        for y, row in enumerate(cells.values())
        for round_, value in sorted(row.items())
        if (None if value is None else shade(value)) == level
    ]


def _fill(axes: Axes, places: list[tuple[int, int]], colour: str, alpha: float) -> None:
    if not places:
        return
    half = 0.5 - _GAP / 2
    corners = [(-half, -half), (half, -half), (half, half), (-half, half), (-half, -half)]
    points = [(x + dx, y + dy) for x, y in places for dx, dy in corners]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(places)
    patch = PathPatch(Path(points, codes), facecolor=colour, alpha=alpha, linewidth=0)
    patch.set_clip_on(False)
    axes.add_patch(patch)


def _frame(axes: Axes, rows: list[str], first: int, last: int) -> None:
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    ticks = MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]).tick_values(first, last)
    few = last - first < 8
    axes.set_xticks(range(first, last + 1) if few else [t for t in ticks if first <= t <= last])
    axes.set_xlabel("round", labelpad=3)
    axes.spines["bottom"].set_visible(False)


def _label(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"


def _spoken(cells: Cells, refused: Mapping[str, Collection[int]]) -> str:
    parts = []
    for name, row in cells.items():
        known = [value for value in row.values() if value is not None]
        mean = f"mean {sum(known) / len(known):.2f}" if known else "no number"
        no = len(refused.get(name, ()))
        parts.append(f"{name}: {mean} over {len(row)} rounds" + (f", {no} refused." if no else "."))
    return " ".join(parts)
