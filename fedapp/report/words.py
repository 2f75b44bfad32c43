"""The result in words: which model was best, by how much, and whether that means anything."""

from __future__ import annotations

from fedapp.report.intervals import difference_noise, wilson
from fedapp.report.markup import Html, element, join, name
from fedapp.report.run_data import RunData, number
from fedapp.report.units import interval_text, plural

ONE_CLASS = 1e-5  # metrics come as single-precision numbers
LEVEL = 0.005  # shares closer than this are the same at two decimals, give or take
PHASE_NAMES = {
    "local-only": "trained alone",
    "received": "federated, as received",
    "personal": "personal, after local training",
}
_SUBJECT = {
    "local-only": "the models trained alone",
    "received": "the federated model as received",
    "personal": "the personal models",
}


def phase_name(run: RunData, phase: str) -> str:
    """Return what a phase's models are, in the words of the run's method."""
    mixed = phase == "personal" and run.mixes
    return "personal, after mixing with neighbours'" if mixed else PHASE_NAMES[phase]


def result(run: RunData) -> list[Html]:
    """Paragraphs that say what came out, honestly."""
    ranked = sorted(
        (
            (value, phase)
            for phase in run.phases()
            if (value := run.mean(phase, run.headline)) is not None
        ),
        key=lambda pair: (-pair[0], pair[1]),
    )
    if not ranked:
        article = "an" if run.metric.name[0] in "aeiou" else "a"
        return [element("p", f"No hospital has reported {article} {run.metric.name} yet.")]
    paragraphs = [_mean_sentence(run, ranked), _auc_sentence(run), _worst_sentence(run)]
    caution = _one_class(run)
    return [
        element("p", *paragraphs),
        element("p", *_noise(run, ranked)),
        *([element("p", caution)] if caution is not None else []),
    ]


def _mean_sentence(run: RunData, ranked: list[tuple[float, str]]) -> Html:
    value, phase = ranked[0]
    leaders = [p for v, p in ranked if value - v < LEVEL]
    limits = interval_text(run.mean_interval(phase))
    several = len(run.sites) > 1
    where = (
        f"On average over {plural(len(run.sites), 'hospital')}" if several else "At the hospital"
    )
    metric = f"{'mean ' if several else ''}{run.split} {run.metric.name} "
    rest = [f"{v:.2f} for {_SUBJECT[p]}" for v, p in ranked if p not in leaders]
    if len(ranked) == 1:
        verdict = join("there is one model to look at, ", element("strong", _SUBJECT[phase]), ": ")
    elif len(leaders) > 1:
        verdict = join(
            element("strong", " and ".join(_SUBJECT[p] for p in leaders)), " come out level: "
        )
    else:
        verdict = join(element("strong", _SUBJECT[phase]), " did best: ")
    return join(
        f"{where}, ",
        verdict,
        metric,
        element("strong", f"{value:.2f}"),
        f" (95 % interval {limits})" if limits else None,
        ", against " + " and ".join(rest) if rest else None,
        ". ",
    )


def _auc_sentence(run: RunData) -> Html | None:
    values = [(v, p) for p in run.phases() if (v := run.mean(p, "auc")) is not None]
    if len(values) < 2:
        return None
    (best, phase), *rest = sorted(values, key=lambda pair: (-pair[0], pair[1]))
    others = " and ".join(f"{value:.2f} for {_SUBJECT[p]}" for value, p in rest)
    return join(
        f"{'Mean ' if len(run.sites) > 1 else ''}AUC, which does not depend on where the line "
        "between the classes is drawn, is ",
        element("strong", f"{best:.2f}"),
        f" for {_SUBJECT[phase]}, against {others}. ",
    )


def _worst_sentence(run: RunData) -> Html | None:
    worst = {p: w for p in run.phases() if (w := run.worst(p)) is not None}
    scores = {p: number(w[1].get(run.headline)) or 0.0 for p, w in worst.items()}
    if not scores or len(run.sites) < 2:
        return None
    best = max(scores.values())
    leaders = [p for p in scores if best - scores[p] < LEVEL]
    site = worst[leaders[0]][0]
    if len(leaders) == len(scores) > 1:
        return join(f"At the worst-served hospital, all of them come out level, at {best:.2f}. ")
    if len(leaders) > 1:
        who = " and ".join(_SUBJECT[p] for p in leaders)
        return join(f"At the worst-served hospital, {who} come out level, at {best:.2f}. ")
    return join(
        "The worst-served hospital fares best with ",
        element("strong", _SUBJECT[leaders[0]]),
        ": ",
        name(site),
        f" reaches {best:.2f}. ",
    )


def _noise(run: RunData, ranked: list[tuple[float, str]]) -> list[Html]:
    sizes = sorted(
        n
        for phases in run.sites.values()
        for m in list(phases.values())[:1]
        if (n := number(m.get("examples"))) is not None
    )
    if not sizes:
        return []
    spread = f"{sizes[0]:,.0f}" if sizes[0] == sizes[-1] else f"{sizes[0]:,.0f} to {sizes[-1]:,.0f}"
    small = wilson(0.8, sizes[0]) if run.metric.is_proportion else None
    parts = [f"Read differences with care: the {run.split} sets hold {spread} examples each"]
    if small is not None:
        parts.append(
            f", so that an {run.metric.name} of 0.80 at the smallest could as well be anything "
            f"from {small.low:.2f} to {small.high:.2f}"
        )
    parts.append(". ")
    verdict = _verdict(run, ranked)
    return [join(*parts), verdict] if verdict else [join(*parts)]


def _one_class(run: RunData) -> Html | None:
    """Name the models whose accuracy is only the share of one class.

    A model that answers one of C classes throughout has recall 1 and precision ``a`` on it, so its
    macro F1 is ``2 a / (1 + a) / C`` with ``a`` its accuracy; the reverse is all but certain.
    """
    classes = run.classes
    if classes is None:
        return None
    found = []
    for phase in run.phases():
        sites = []
        for site, phases in run.sites.items():
            accuracy = number(phases.get(phase, {}).get("accuracy"))
            f1 = number(phases.get(phase, {}).get("f1"))
            if accuracy is None or f1 is None or not 0 < accuracy < 1:
                continue
            if abs(f1 - 2 * accuracy / (1 + accuracy) / classes) < ONE_CLASS:
                sites.append(site)
        if sites:
            found.append((phase, sites))
    if not found:
        return None
    where = [join(_SUBJECT[phase], " at ", _named(sites, len(run.sites))) for phase, sites in found]
    return join(
        element("strong", "One class only: "),
        *(join("; " if i else "", part) for i, part in enumerate(where)),
        " gave every example the same class, as accuracy and F1 together show. Such an accuracy is "
        "the share of that class, not a skill; the AUC says more.",
    )


def _named(sites: list[str], of: int) -> Html:
    """Name up to five sites."""
    if len(sites) == of > 1:
        return join("every hospital")
    names = join(*(join(", " if i else "", name(site)) for i, site in enumerate(sites[:5])))
    return join(names, f" and {len(sites) - 5} more" if len(sites) > 5 else None)


def _verdict(run: RunData, ranked: list[tuple[float, str]]) -> Html | None:
    if len(ranked) < 2:
        return None
    (first, a), (second, b) = ranked[:2]
    interval_a, interval_b = run.mean_interval(a), run.mean_interval(b)
    if interval_a is None or interval_b is None:
        return None
    noise = difference_noise(first, interval_a, second, interval_b)
    gap = first - second
    if gap < LEVEL:
        return join("Only other seeds can tell equal means apart.")
    if gap <= noise:
        return join(
            f"The gap of {gap:.2f} between the two best means is within noise "
            f"(about ±{noise:.2f}): this one run does not show that one is better. "
            "Repeat it with other seeds."
        )
    return join(
        f"The gap of {gap:.2f} between the two best means is larger than the sampling noise "
        f"(about ±{noise:.2f}); other seeds should confirm it."
    )
