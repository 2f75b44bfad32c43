"""The grid of attacks and rules as docs/byzantine.md. Not a benchmark itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.byzantine_table import (
    CENTRAL,
    LOCAL,
    ORACLE,
    OURS,
    Runs,
    Table,
    below_local_only,
    claims,
    rows,
    spreads,
)

NAMES = {
    "sign-flip": "sign flip", "noise": "noise", "random": "random", "head-flip": "head flip",
    "alie": "ALIE", "ipm": "IPM", "mixed": "mixed",
}  # fmt: skip
PLACES = {"writers": "Writers", "texts": "Texts", "digits": "Digits"}
FAULTY = (1, 4, 6, 7)
HEAD = """\
# Seven attacks, sixteen rules, eight sites

Made by `python -m benchmarks.byzantine page` from `benchmarks/results/byzantine.json`; what was
run, and what to make of it: [faults.md](faults.md#the-grid).

![Accuracy of the honest sites by rule and attack, half of the sites faulty](images/byzantine.svg)

A number is an accuracy on the honest sites' own test records: the mean of the honest sites, and
after the stroke the worst of them, both means over {seeds}. `oracle` averages the honest sites'
models and knows who they are; `local-only` is each honest site by itself; neither notices an
attack. In bold the best of the others, and what is within half a point of it.
"""


def page(runs: Runs) -> str:
    """Return the page's text, Markdown."""
    table = rows(runs)
    counts = [numbers["seeds"] for row in table.values() for numbers in row.values()]
    few, many = min(counts), max(counts)
    seeds = f"{few} to {many} seeds" if few < many else "1 seed" if many == 1 else f"{many} seeds"
    parts = [HEAD.format(seeds=seeds)]
    parts.append(_claims(table))
    for place, title in PLACES.items():
        mine = {name: row for name, row in table.items() if name.startswith(f"{place}/")}
        if mine:
            parts += [f"## {title}\n", *_place(place, mine)]
    parts.append(_between(table))
    return "\n".join(parts)


def _claims(table: Table) -> str:
    """Return what was aimed at, a line a claim and place, an attack a column."""
    found = claims(table)
    places = _ordered({name.split("/")[0] for name in found}, PLACES)
    lines = [
        "## What was aimed at, and what came\n",
        "What `lightyear`'s default makes, and the bound; **no** where it is below it. "
        "The same seeds on both sides.\n",
        *_head(("", *NAMES.values())),
    ]
    for faulty in (4, 6, 7):
        for place in places:
            cells, aim = [], ""
            for attack in NAMES:
                claim = found.get(f"{place}/{attack}/{faulty}")
                aim = claim["claim"] if claim else aim
                cells.append(_claim(claim))
            lines.append(_line((f"{PLACES[place]}, {faulty} of 8: {aim}", *cells)))
    lines.append("")
    lines += [
        f"{PLACES[place]} without attack, {claim['claim']}: {_claim(claim)}."
        for place in places
        if (claim := found.get(f"{place}/none/0")) is not None
    ]
    kept = sum(claim["holds"] for claim in found.values())
    fallen = below_local_only(table)
    lines.append(
        f"\n{kept} of {len(found)} hold. `{CENTRAL}` is below local-only in {sum(fallen.values())} "
        f"of the {len(fallen)} rows with four or more of eight sites faulty.\n"
    )
    return "\n".join(lines)


def _claim(claim: Mapping[str, Any] | None) -> str:
    if claim is None:
        return ""
    text = f"{_short(claim['got'])} ≥ {_short(claim['bound'])}"
    return text if claim["holds"] else f"**no**: {text.replace('≥', '<')}"


def _place(place: str, table: Table) -> list[str]:
    parts = []
    nobody = table.get(f"{place}/none/0", {})
    if nobody:
        told = (f"`{rule}` {_score(numbers)}" for rule, numbers in _ranked(nobody))
        parts.append(f"Without attack: {', '.join(told)}.\n")
    for faulty in FAULTY:
        of_attack = {
            attack: table[f"{place}/{attack}/{faulty}"]
            for attack in NAMES
            if f"{place}/{attack}/{faulty}" in table
        }
        if of_attack:
            parts.append(f"### {PLACES[place]}, {faulty} of 8 sites faulty\n")
            parts.append(_accuracies(of_attack))
            parts.append(_acceptance(of_attack))
    return parts


def _accuracies(of_attack: Mapping[str, Mapping[str, Any]]) -> str:
    rules = {rule for row in of_attack.values() for rule in row}
    best = {
        attack: max(row[rule]["mean"] for rule in row if rule not in (ORACLE, LOCAL))
        for attack, row in of_attack.items()
    }
    lines = _head(("", *(NAMES[attack] for attack in of_attack)))
    for rule in by_mean(rules, of_attack):
        cells = []
        for attack, row in of_attack.items():
            text = _score(row[rule]) if rule in row else ""
            strong = rule not in (ORACLE, LOCAL) and rule in row
            strong = strong and row[rule]["mean"] >= best[attack] - 0.005
            cells.append(f"**{text}**" if strong else text)
        lines.append(_line((f"`{rule}`", *cells)))
    return "\n".join([*lines, ""])


def _acceptance(of_attack: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which share of honest and of faulty models the rules that choose have accepted."""
    choosing = {
        rule
        for row in of_attack.values()
        for rule, numbers in row.items()
        if rule not in (ORACLE, "average") and "accepted_faulty" in numbers
    }
    if not choosing:
        return ""
    lines = ["Accepted, honest / faulty, %:\n", *_head(("", *(NAMES[a] for a in of_attack)))]
    for rule in by_mean(choosing, of_attack):
        cells = []
        for row in of_attack.values():
            numbers = row.get(rule, {})
            rates = [numbers.get(key) for key in ("accepted_honest", "accepted_faulty")]
            shown = ["-" if rate is None else f"{100 * rate:.0f}" for rate in rates]
            cells.append(" / ".join(shown) if numbers else "")
        lines.append(_line((f"`{rule}`", *cells)))
    return "\n".join([*lines, ""])


def _between(table: Table) -> str:
    """Return how far honest sites are apart under each rule, and how seeds are."""
    apart = spreads(table)
    least = sum(each["least"] == OURS for each in apart.values())
    lines = [
        "## Differences between sites, and between seeds\n",
        "Standard deviation of the honest sites' accuracies, mean over the attacks; four of eight "
        "faulty.\n",
    ]
    places = _ordered({name.split("/")[0] for name in table}, PLACES)
    lines += _head(("", *(PLACES[place] for place in places)))
    halves = {
        place: [row for name, row in table.items() if _is_half(name, place)] for place in places
    }
    rules = {rule for mine in halves.values() for row in mine for rule in row}
    means = {
        (rule, place): fmean(values)
        for rule in rules
        for place, mine in halves.items()
        if (values := [row[rule]["between_sites"] for row in mine if rule in row])
    }
    order = sorted(rules, key=lambda rule: fmean(means.get((rule, p), 1.0) for p in places))
    for rule in order:
        shown = (_short(means[rule, p]) if (rule, p) in means else "" for p in places)
        lines.append(_line((f"`{rule}`", *shown)))
    stds = [row[OURS]["std"] for row in table.values() if OURS in row]
    lines.append(
        f"\n`{OURS}` has the least of all rules in {least} of the {len(apart)} rows of all numbers "
        "of faulty sites but seven, where one site is left. Between seeds the mean of the honest "
        f"sites under `{OURS}` has a standard deviation of {_short(median(stds))} "
        f"(median of the rows; largest {_short(max(stds))}).\n"
    )
    return "\n".join(lines)


def _is_half(name: str, place: str) -> bool:
    return name.startswith(f"{place}/") and name.endswith("/4")


def by_mean(rules: Iterable[str], of_attack: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sort rules by their mean over the attacks, the best first; the yardsticks before all."""

    def key(rule: str) -> tuple[bool, float, str]:
        means = [row[rule]["mean"] for row in of_attack.values() if rule in row]
        return rule not in (ORACLE, LOCAL), -fmean(means), rule

    return sorted(rules, key=key)


def _ranked(row: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(row.items(), key=lambda item: (-item[1]["mean"], item[0]))


def _score(numbers: Mapping[str, Any]) -> str:
    return f"{_short(numbers['mean'])}/{_short(numbers['worst'])}"


def _short(value: float) -> str:
    """Write a share without its 0: .871."""
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0") else text


def _ordered(found: set[str], order: Iterable[str]) -> list[str]:
    return [each for each in order if each in found]


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), "|" + "---|" * len(titles)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
