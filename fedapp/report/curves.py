"""The learning curves: small multiples, one per hospital, and their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedapp.report import plots
from fedapp.report.cards import card, legend, mean_series
from fedapp.report.markup import Html, element, name
from fedapp.report.run_data import RunData, number
from fedapp.report.units import plural
from fedapp.tasks import title

MOST_CARDS = 12  # with more sites, the weakest are shown and the rest fold away
MOST_DRAWN = 100  # further sites are in the table alone


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
            phase: mean_series([curves[site][phase] for site in sites])
            for phase in ("received", "personal")
        }
        mean_alone = math.fsum(dashed.values()) / len(dashed) if len(dashed) == len(sites) else None
        mean_finals = {
            phase: (value, run.mean_interval(phase))
            for phase in run.phases()
            if run.split == "test" and (value := run.mean(phase, run.headline)) is not None
        }
        figures.append(
            card(
                "Mean of hospitals",
                None,
                plots.learning_curves(
                    mean_curves,
                    mean_finals,
                    mean_alone,
                    key="curve-mean",
                    rounds=last,
                    floor=floor,
                    title=f"Validation {run.metric.name} over rounds, mean of hospitals",
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
            title=f"Validation {run.metric.name} over rounds, {site}",
        )
        cards[site] = card(name(site), None, svg)
    rest = [cards[site] for site in sites if site in drawn and site not in shown]
    guide = _guide(run, bool(dashed), None if not rest else len(shown))
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
        site: number(run.sites.get(site, {}).get("personal", {}).get(run.headline))
        for site in sites
    }
    return sorted(sites, key=lambda site: (1.0 if (v := final[site]) is None else v, site))


def _guide(run: RunData, has_local_only: bool, weakest: int | None) -> Html:
    entries = [
        ("received", "as the round began" if run.mixes else "federated, as received that round"),
        ("personal", f"personal, after that round's {'mixing' if run.mixes else 'training'}"),
    ]
    if has_local_only:
        entries.append(("local-only", "trained alone, at its end"))
    what, interval = run.metric.name, run.metric.is_proportion
    text = f"{title(run.headline)} on the validation split over rounds, on one scale for all "
    text += "hospitals."
    if run.split == "test":
        with_interval = " with its 95 % interval" if interval else ""
        text += f" Shaded, at the right: the final test {what}{with_interval}."
    if weakest is not None:
        text += f" First come the {weakest} hospitals with the lowest personal {what}."
    return element(
        "div",
        element("h3", "How to read the plots"),
        legend(entries),
        element("p", text, class_="quiet"),
        class_="card guide",
    )


def _estimates(run: RunData, site: str) -> dict[str, plots.Estimate]:
    if run.split != "test":
        return {}
    estimates = {}
    for phase, metrics in run.sites.get(site, {}).items():
        value = number(metrics.get(run.headline))
        if value is not None:
            estimates[phase] = (value, run.interval(metrics))
    return estimates


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
