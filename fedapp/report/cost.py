"""What a run costs: bytes and seconds per round, and in all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedapp.report import plots
from fedapp.report.cards import card, legend
from fedapp.report.markup import Html, element, join
from fedapp.report.run_data import RunData, number
from fedapp.report.units import duration, size


def cost_section(run: RunData) -> Html | None:
    """Bytes and seconds per round."""
    cards = [made for made in (_traffic(run), _time(run), _totals(run)) if made is not None]
    if not cards:
        return None
    return element(
        "section",
        element("h2", "Traffic and time", id="cost"),
        element("div", *cards, class_="grid"),
        aria_labelledby="cost",
    )


def _traffic(run: RunData) -> Html | None:
    up, down = run.series("bytes_up"), run.series("bytes_down")
    largest = max((value for _, value in (*up, *down)), default=0.0)
    if largest <= 0:
        return None
    unit, factor = next(
        (u, f)
        for u, f in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
        if largest >= f or f == 1
    )
    series = {
        "sent by hospitals": _scaled(up, factor),
        "received by hospitals": _scaled(down, factor),
    }
    svg = plots.bars(series, key="traffic", title="Traffic per round", unit=unit, stacked=False)
    entries = [("first", "sent by all hospitals"), ("second", "received by all hospitals")]
    return card("Traffic per round", legend(entries, bars=True), svg)


def _time(run: RunData) -> Html | None:
    total = dict(run.series("seconds"))
    if not total or max(total.values()) <= 0:
        return None
    training = _training(run)
    series = {
        "training": sorted(training.items()),
        "everything else": [(r, s - training.get(r, 0.0)) for r, s in sorted(total.items())],
    }
    svg = plots.bars(series, key="time", title="Time per round", unit="seconds", stacked=True)
    beside = run.concurrency()
    label = "training" if beside == 1 else f"training, {beside} hospitals side by side"
    entries = [("first", label), ("second", "evaluation, transfer, merge, waiting")]
    return card("Time per round", legend(entries, bars=True), svg)


def _training(run: RunData) -> dict[int, float]:
    """Part of each round's seconds that went into training.

    The rows hold the sum over hospitals; those that work side by side share the same seconds.
    """
    total, beside = dict(run.series("seconds")), run.concurrency()
    return {r: min(s / beside, total[r]) for r, s in run.series("training_seconds") if r in total}


def _totals(run: RunData) -> Html | None:
    sums = {
        key: math.fsum(value for _, value in run.series(key))
        for key in ("bytes_up", "bytes_down", "seconds", "replies", "retries")
    }
    facts = [("sent by all hospitals", size(sums["bytes_up"]))]
    facts.append(("received by all", size(sums["bytes_down"])))
    if sums["replies"]:
        facts.append(("sent by one, one round", size(sums["bytes_up"] / sums["replies"])))
    if sums["seconds"]:
        facts.append(("time of the rounds", duration(sums["seconds"])))
        share = math.fsum(_training(run).values()) / sums["seconds"]
        facts.append(("of that, training", f"{share * 100:.0f} %"))
    if sums["retries"]:
        facts.append(("repeated rounds", f"{sums['retries']:.0f}"))
    wall = number(run.summary.get("wall_seconds"))
    if wall is not None:
        facts.append(("whole run, start to end", duration(wall)))
    rows = [join(element("dt", label), element("dd", value)) for label, value in facts]
    heading = element("h3", "All rounds together")
    return element("div", heading, element("dl", *rows, class_="totals"), class_="card")


def _scaled(points: Sequence[tuple[int, float]], factor: float) -> list[tuple[int, float]]:
    return [(round_, value / factor) for round_, value in points]
