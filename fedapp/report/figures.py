"""The sections made of plots: learning curves, diagnostics, traffic and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fedapp.report import plots
from fedapp.report.intervals import wilson
from fedapp.report.markup import Html, element, join, name
from fedapp.report.run_data import RunData, number
from fedapp.report.words import duration, plural, size

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


MOST_CARDS = 12  # with more sites, the weakest are shown and the rest fold away
MOST_DRAWN = 100  # further sites are in the table alone


@dataclass(frozen=True)
class Diagnostic:
    """One diagnostic plot: what it shows and how to read it."""

    key: str
    title: str
    reading: str
    series: Mapping[str, str]  # label -> key of the federation rows
    low: float | None = 0.0
    high: float | None = 1.0


DIAGNOSTICS = (
    Diagnostic(
        "overlap",
        "Overlap of subspaces",
        "Do the updates stay in the column space of the shared B? 1: the same space; small steps "
        "alone give that too.",
        {
            "root form, as in released code": "overlap",
            "squared form, as in the paper": "overlap_squared",
        },
    ),
    Diagnostic(
        "cancellation",
        "Cancellation",
        "Length of the summed update over the sum of lengths. 1: nothing cancels; 0: everything.",
        {"cumulative": "cancellation", "this round's work alone": "cancellation_increment"},
    ),
    Diagnostic(
        "cosines",
        "Agreement of directions",
        "Cosine of each hospital's update with the merged one, and of hospitals with each other.",
        {"hospital and merged": "client_global_cosine", "hospital and hospital": "pairwise_cosine"},
        low=-1.0,
    ),
    Diagnostic(
        "merge",
        "Merge error",
        "Distance of the merged model from the exact mean of the hospitals' models, relative to "
        "that mean.",
        {"merged and exact": "merge_error"},
        high=None,
    ),
)


def learning_section(run: RunData) -> Html | None:
    """Small multiples, one per hospital, and the mean."""
    sites = run.site_names
    curves = {
        site: {phase: run.curve(site, phase) for phase in ("received", "personal")}
        for site in sites
    }
    if not any(points for by_phase in curves.values() for points in by_phase.values()):
        return None
    alone = {site: run.curve(site, "local-only") for site in sites}
    dashed = {site: points[-1][1] for site, points in alone.items() if points}
    finals = {site: _estimates(run, site) for site in sites}
    floor = _floor(run, curves, dashed, finals)
    last = max(run.rounds_done, 1)
    figures = []
    if len(sites) > 1:
        mean_curves = {
            phase: _mean_series([curves[site][phase] for site in sites])
            for phase in ("received", "personal")
        }
        mean_alone = math.fsum(dashed.values()) / len(dashed) if len(dashed) == len(sites) else None
        mean_finals = {
            phase: (value, run.mean_interval(phase))
            for phase in run.phases()
            if run.split == "test" and (value := run.mean(phase, "accuracy")) is not None
        }
        figures.append(
            _card(
                "Mean of hospitals",
                None,
                plots.learning_curves(
                    mean_curves,
                    mean_finals,
                    mean_alone,
                    key="curve-mean",
                    rounds=last,
                    floor=floor,
                    title="Validation accuracy over rounds, mean of hospitals",
                ),
                "card mean",
            )
        )
    weakest = _weakest(run, sites)
    shown = sites if len(sites) <= MOST_CARDS else weakest[: MOST_CARDS - 2]
    drawn = set(weakest[:MOST_DRAWN])
    cards = {}
    for index, site in enumerate(sites):
        if site not in drawn:
            continue
        svg = plots.learning_curves(
            curves[site],
            finals[site],
            dashed.get(site),
            key=f"curve-{index}",
            rounds=last,
            floor=floor,
            title=f"Validation accuracy over rounds, {site}",
        )
        cards[site] = _card(name(site), None, svg)
    rest = [cards[site] for site in sites if site in drawn and site not in shown]
    guide = _guide(bool(dashed), run.split == "test", None if not rest else len(shown))
    figures += [cards[site] for site in shown]
    others = "other" if len(drawn) == len(sites) else "next"
    more = element("summary", f"The {others} {plural(len(rest), 'hospital')}")
    return element(
        "section",
        element("h2", "Learning curves", id="curves"),
        element("div", guide, *figures, class_="grid"),
        element("details", more, element("div", element("div", *rest, class_="grid")))
        if rest
        else None,
        aria_labelledby="curves",
    )


def _weakest(run: RunData, sites: Sequence[str]) -> list[str]:
    """The sites whose personal model ends lowest, lowest first."""
    final = {
        site: number(run.sites.get(site, {}).get("personal", {}).get("accuracy")) for site in sites
    }
    return sorted(sites, key=lambda site: (1.0 if (v := final[site]) is None else v, site))


def _guide(has_local_only: bool, has_test: bool, weakest: int | None) -> Html:
    entries = [
        ("received", "federated, as received that round"),
        ("personal", "personal, after that round's training"),
    ]
    if has_local_only:
        entries.append(("local-only", "trained alone, at its end"))
    text = "Accuracy on the validation split over rounds, on one scale for all hospitals."
    if has_test:
        text += " Shaded, at the right: the final test accuracy with its 95 % interval."
    if weakest is not None:
        text += f" First come the {weakest} hospitals with the lowest personal accuracy."
    return element(
        "div",
        element("h3", "How to read the plots"),
        _legend(entries),
        element("p", text, class_="quiet"),
        class_="card guide",
    )


def diagnostics_section(run: RunData) -> Html | None:
    """Loss, and what the hospitals' updates have in common, over rounds."""
    cards = [card for card in (_loss(run), *map(partial(_diagnostic, run), DIAGNOSTICS)) if card]
    if not cards:
        return None
    note = (
        "Computed from the updates as they arrive, before the merge, and averaged over the adapted "
        "layers. The vertical scales zoom on the data. A number that is not defined, such as the "
        "overlap in round 1 while the shared B is zero, is left out."
    )
    guide = element(
        "div",
        element("h3", "How to read the diagnostics"),
        element("p", note, class_="quiet"),
        class_="card guide",
    )
    return element(
        "section",
        element("h2", "Diagnostics", id="diagnostics"),
        element("div", guide, *cards, class_="grid"),
        aria_labelledby="diagnostics",
    )


def _loss(run: RunData) -> Html | None:
    series = {
        label: points
        for label, phase, key in (
            ("training", "personal", "train_loss"),
            ("validation, as received", "received", "loss"),
            ("validation, personal", "personal", "loss"),
        )
        if (points := _mean_series([run.curve(s, phase, key) for s in run.site_names]))
    }
    if not series:
        return None
    reading = "Mean over hospitals; the penalty of a method is not part of it."
    item = Diagnostic("loss", "Loss", reading, {}, high=None)
    return _diagnostic_card(item, series)


def _diagnostic(run: RunData, item: Diagnostic) -> Html | None:
    series = {label: points for label, key in item.series.items() if (points := run.series(key))}
    return _diagnostic_card(item, series) if series else None


def _diagnostic_card(item: Diagnostic, series: Mapping[str, plots.Series]) -> Html:
    svg = plots.diagnostic(
        series,
        key=f"diagnostic-{item.key}",
        title=f"{item.title} over rounds",
        low=item.low,
        high=item.high,
    )
    entries = list(zip(("first", "second", "third"), series, strict=False))
    above = join(element("p", item.reading, class_="quiet"), _legend(entries))
    return _card(item.title, above, svg)


def cost_section(run: RunData) -> Html | None:
    """Bytes and seconds per round."""
    cards = [card for card in (_traffic(run), _time(run), _totals(run)) if card is not None]
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
    legend = _legend(
        [("first", "sent by all hospitals"), ("second", "received by all hospitals")], bars=True
    )
    return _card("Traffic per round", legend, svg)


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
    return _card("Time per round", _legend(entries, bars=True), svg)


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


def _card(title: object, above: Html | None, svg: Html, classes: str = "card") -> Html:
    caption = element("figcaption", element("h3", title), above)
    return element("figure", caption, svg, class_=classes)


def _legend(entries: Sequence[tuple[str, str]], bars: bool = False) -> Html:
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


def _estimates(run: RunData, site: str) -> dict[str, plots.Estimate]:
    if run.split != "test":
        return {}
    estimates = {}
    for phase, metrics in run.sites.get(site, {}).items():
        value, count = number(metrics.get("accuracy")), number(metrics.get("examples"))
        if value is not None:
            estimates[phase] = (value, wilson(value, count) if count is not None else None)
    return estimates


def _mean_series(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Mean over the sites that took part in the round."""
    by_round: dict[int, list[float]] = {}
    for curve in curves:
        for round_, value in curve:
            by_round.setdefault(round_, []).append(value)
    return [(r, math.fsum(v) / len(v)) for r, v in sorted(by_round.items())]


def _floor(
    run: RunData,
    curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]],
    dashed: Mapping[str, float],
    finals: Mapping[str, Mapping[str, plots.Estimate]],
) -> float:
    """Lower end of the common scale: the least value shown, rounded down to a tenth."""
    values = [v for by_phase in curves.values() for points in by_phase.values() for _, v in points]
    values += dashed.values()
    for estimates in finals.values():
        values += [e[1].low if e[1] is not None else e[0] for e in estimates.values()]
    return max(0.0, min(0.9, math.floor(min(values) * 10) / 10))
