"""The plots, one function each: data in, inline SVG out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedapp.report.intervals import Interval
from fedapp.report.markup import Html
from fedapp.report.svg import ROLES, STYLE, new_figure, to_svg

Series = Sequence[tuple[int, float]]
Estimate = tuple[float, Interval | None]
WIDTH, HEIGHT = 340.0, 200.0
MARKED_ROUNDS = 16  # more points than this and markers would touch
BARS = 40  # more rounds than this are drawn as a filled step
_LOOK = {
    "local-only": ("local", "s", (0, (4, 2.5))),
    "received": ("received", "o", "solid"),
    "personal": ("personal", "D", "solid"),
}


@contextmanager
def _figure(width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield new_figure(width, height)


def learning_curves(
    curves: Mapping[str, Series],
    finals: Mapping[str, Estimate],
    local_only: float | None,
    *,
    key: str,
    title: str,
    rounds: int,
    floor: float,
) -> Html:
    """Validation values over rounds, and the final test value with its interval at the right.

    Values are shares, such as an accuracy.

    Parameters
    ----------
    curves : mapping of phase to series
        ``received`` and ``personal``.
    finals : mapping of phase to (value, interval)
        Drawn in a narrow strip; left out if empty.
    local_only : float or None
        Validation value of training alone, a dashed line.
    rounds : int
        Last round of the run; the same horizontal scale for all sites.
    floor : float
        Lower end of the vertical scale, the same for all sites.
    """
    with _figure() as figure:
        ratios = {"left": 0.12, "right": 0.985, "top": 0.96, "bottom": 0.185, "wspace": 0.05}
        if finals:
            grid = figure.add_gridspec(1, 2, width_ratios=(3.1, 1), **ratios)
            axes, strip = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
            _final_strip(strip, finals, floor)
        else:
            axes = figure.add_subplot(figure.add_gridspec(1, 1, **ratios)[0])
        _share_axis(axes, floor)
        _round_axis(axes, 1, rounds)
        if local_only is not None:
            axes.axhline(local_only, color=ROLES["local"], linestyle=(0, (4, 2.5)), zorder=2)
        for phase, series in curves.items():
            _line(axes, series, *_LOOK[phase])
        return to_svg(figure, key, title, _spoken(curves, finals, local_only))


def diagnostic(
    series: Mapping[str, Series], *, key: str, title: str, low: float | None, high: float | None
) -> Html:
    """Up to three series over rounds in the colours first, second, third; distinct markers too."""
    looks = (
        ("first", "o", "solid"),
        ("second", "D", (0, (5, 1.6))),
        ("third", "s", (0, (1.5, 1.5))),
    )
    with _figure() as figure:
        axes = figure.add_axes((0.15, 0.185, 0.835, 0.775))
        rounds = [round_ for points in series.values() for round_, _ in points]
        values = [value for points in series.values() for _, value in points]
        _round_axis(axes, min(rounds), max(rounds))
        for points, look in zip(series.values(), looks, strict=False):
            _line(axes, points, *look)
        _value_axis(axes, min(values), max(values), low, high)
        return to_svg(figure, key, title, _spoken_series(series))


def bars(series: Mapping[str, Series], *, key: str, title: str, unit: str, stacked: bool) -> Html:
    """One or two amounts per round, side by side or stacked."""
    with _figure() as figure:
        axes = figure.add_axes((0.15, 0.185, 0.835, 0.72))
        rounds = sorted({round_ for points in series.values() for round_, _ in points})
        table = {label: dict(points) for label, points in series.items()}
        _round_axis(axes, rounds[0], rounds[-1], margin=0.6)
        bottom = dict.fromkeys(rounds, 0.0)
        top = 0.0
        for index, (values, role) in enumerate(
            zip(table.values(), ("first", "second"), strict=False)
        ):
            heights = [values.get(round_, 0.0) for round_ in rounds]
            bases = [bottom[round_] for round_ in rounds]
            if stacked:
                for round_, height in zip(rounds, heights, strict=True):
                    bottom[round_] += height
            ends = [base + height for base, height in zip(bases, heights, strict=True)]
            top = max(top, *ends)
            _amounts(axes, rounds, bases, ends, role, None if stacked else index)
        axes.set_ylim(0, top * 1.06 if top > 0 else 1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
        axes.grid(axis="y")
        axes.text(0, 1.04, unit, transform=axes.transAxes, color=ROLES["muted"], fontsize=11.5)
        return to_svg(figure, key, title, _spoken_series(series, f" {unit}"))


def _amounts(
    axes: Axes,
    rounds: list[int],
    bases: list[float],
    ends: list[float],
    role: str,
    beside: int | None,
) -> None:
    if len(rounds) > BARS and beside is not None:
        dash = ("solid", (0, (5, 3)))[beside]  # equal amounts must not hide each other
        axes.plot(rounds, ends, color=ROLES[role], linestyle=dash)
        return
    if len(rounds) > BARS:
        axes.fill_between(rounds, bases, ends, color=ROLES[role], step="mid", linewidth=0)
        return
    width = 0.62 if beside is None else 0.34
    shift = 0.0 if beside is None else (beside - 0.5) * 0.38
    heights = [end - base for base, end in zip(bases, ends, strict=True)]
    places = [round_ + shift for round_ in rounds]
    axes.bar(places, heights, width, bottom=bases, color=ROLES[role], linewidth=0)


def _final_strip(strip: Axes, finals: Mapping[str, Estimate], floor: float) -> None:
    _share_axis(strip, floor)
    strip.tick_params(labelleft=False)
    strip.set_xlim(-0.7, len(_LOOK) - 0.3)
    strip.set_xticks([])
    strip.set_xlabel("test", labelpad=5.5)
    strip.spines["bottom"].set_visible(False)
    strip.patch.set_facecolor(ROLES["line"])
    strip.patch.set_alpha(0.35)
    for place, (phase, (role, marker, _)) in enumerate(_LOOK.items()):
        if phase not in finals:
            continue
        value, interval = finals[phase]
        if interval is not None:
            strip.plot([place, place], interval, color=ROLES[role], linewidth=1.6, clip_on=False)
        strip.plot([place], [value], marker, color=ROLES[role], markersize=6, clip_on=False)


def _line(axes: Axes, series: Series, role: str, marker: str, linestyle: object) -> None:
    if not series:
        return
    rounds, values = zip(*series, strict=True)
    shown = marker if len(series) <= MARKED_ROUNDS else ""
    axes.plot(
        rounds,
        values,
        color=ROLES[role],
        marker=shown,
        linestyle=linestyle,
        clip_on=False,
        zorder=3,
    )


def _share_axis(axes: Axes, floor: float) -> None:
    axes.set_ylim(floor, 1.0)
    step = 0.1 if floor >= 0.5 else 0.2
    first = math.ceil(round(floor / step, 6)) * step
    axes.set_yticks([first + step * i for i in range(int(round((1 - first) / step, 6)) + 1)])
    axes.yaxis.set_major_formatter("{x:.1f}")
    axes.grid(axis="y")


def _value_axis(
    axes: Axes, least: float, most: float, low: float | None, high: float | None
) -> None:
    """Zoom on the data, but never past the natural ends, and never closer than 0.02."""
    space = max((most - least) * 0.12, 0.01)
    bottom, top = least - space, most + space
    axes.set_ylim(
        max(bottom, low) if low is not None and low <= least else bottom,
        min(top, high) if high is not None and high >= most else top,
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(axis="y")


def _round_axis(axes: Axes, first: int, last: int, margin: float | None = None) -> None:
    spread = margin if margin is not None else max((last - first) * 0.04, 0.15)
    axes.set_xlim(first - spread, last + spread)
    ticks = MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]).tick_values(first, last)
    few = last - first < 8
    axes.set_xticks(range(first, last + 1) if few else [t for t in ticks if first <= t <= last])
    axes.set_xlabel("round", labelpad=3)


def _spoken(
    curves: Mapping[str, Series], finals: Mapping[str, Estimate], local_only: float | None
) -> str:
    parts = [_spoken_series(curves)]
    if local_only is not None:
        parts.append(f"trained alone: {local_only:.2f} on validation.")
    for phase, (value, interval) in finals.items():
        limits = f", 95 % interval {interval.low:.2f} to {interval.high:.2f}" if interval else ""
        parts.append(f"Test, {phase}: {value:.2f}{limits}.")
    return " ".join(parts)


def _spoken_series(series: Mapping[str, Series], unit: str = "") -> str:
    parts = []
    for label, points in series.items():
        if not points:
            continue
        (first, start), (last, end) = points[0], points[-1]
        if first == last:
            parts.append(f"{label}: {start:.3g}{unit} in round {first}.")
        else:
            parts.append(
                f"{label}: from {start:.3g}{unit} in round {first} "
                f"to {end:.3g}{unit} in round {last}."
            )
    return " ".join(parts)
