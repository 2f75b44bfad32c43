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
    Row,
    Runs,
    Table,
    below_local_only,
    claims,
    complete,
    rows,
    spreads,
)
from fedapp.report.units import plural

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
attack. In bold the best of the others, and what is within half a point of it. A number in brackets
says of how many seeds a cell is that has not all of its row's; such a rule is compared with none,
and stands after those that have all.
"""


def page(runs: Runs) -> str:
    """Return the page's text, Markdown."""
    table = rows(runs)
    counts = [numbers["seeds"] for row in table.values() for numbers in row.values()]
    few, many = min(counts, default=0), max(counts, default=0)
    seeds = f"{few} to {many} seeds" if few < many else plural(many, "seed")
    parts = [HEAD.format(seeds=seeds)]
    parts.append(_claims(table))
    for place, title in PLACES.items():
        mine = {name: row for name, row in table.items() if name.startswith(f"{place}/")}
        if mine:
            parts += [f"## {title}\n", *of_place(place, mine)]
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
        *head(("", *NAMES.values())),
    ]
    for faulty in (4, 6, 7):
        for place in places:
            cells, aim = [], ""
            for attack in NAMES:
                claim = found.get(f"{place}/{attack}/{faulty}")
                aim = claim["claim"] if claim else aim
                cells.append(_claim(claim))
            lines.append(line((f"{PLACES[place]}, {faulty} of 8: {aim}", *cells)))
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
    lines += _by_single_seeds(found)
    return "\n".join(lines)


def _by_single_seeds(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return where a claim fails in a seed by itself, the attacks of a place and seed together."""
    failed: dict[tuple[str, int, str], list[str]] = {}
    for name, claim in found.items():
        place, attack, faulty = name.split("/")
        for seed in claim["fails"]:
            failed.setdefault((place, int(faulty), seed), []).append(attack)
    seeds = sum(claim["seeds"] for claim in found.values())
    fails = sum(map(len, failed.values()))
    told = []
    for (place, faulty, seed), attacks in sorted(failed.items()):
        names = ", ".join(NAMES[each] for each in NAMES if each in attacks)
        names = "all seven attacks" if set(attacks) >= NAMES.keys() else names or "without attack"
        told.append(f"{place}, {faulty} of 8, {seed.replace('seed', 'seed ')}: {names}")
    text = f"By single seeds {seeds - fails} of {seeds} hold"
    return [f"{text}; what does not: {'; '.join(told)}.\n" if told else f"{text}.\n"]


def _claim(claim: Mapping[str, Any] | None) -> str:
    if claim is None:
        return ""
    text = f"{short(claim['got'])} ≥ {short(claim['bound'])}"
    return text if claim["holds"] else f"**no**: {text.replace('≥', '<')}"


def of_place(place: str, table: Table) -> list[str]:
    """Return the tables of a place: without attack, and for every number of faulty sites."""
    parts = []
    nobody = table.get(f"{place}/none/0", {})
    if nobody:
        told = (f"`{rule}` {_score(nobody, rule)}" for rule in _ranked(nobody))
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


def _accuracies(of_attack: Mapping[str, Row]) -> str:
    rules = {rule for row in of_attack.values() for rule in row}
    compared = {
        attack: {rule: row[rule]["mean"] for rule in complete(row) if rule not in (ORACLE, LOCAL)}
        for attack, row in of_attack.items()
    }
    lines = head(("", *(NAMES[attack] for attack in of_attack)))
    for rule in by_mean(rules, of_attack):
        cells = []
        for attack, row in of_attack.items():
            text, means = _score(row, rule) if rule in row else "", compared[attack]
            strong = rule in means and means[rule] >= max(means.values()) - 0.005
            cells.append(f"**{text}**" if strong else text)
        lines.append(line((f"`{rule}`", *cells)))
    return "\n".join([*lines, ""])


def _acceptance(of_attack: Mapping[str, Row]) -> str:
    """Return which share of honest and of faulty models the rules that choose have accepted."""
    choosing = {
        rule
        for row in of_attack.values()
        for rule, numbers in row.items()
        if rule not in (ORACLE, "average") and "accepted_faulty" in numbers
    }
    if not choosing:
        return ""
    lines = ["Accepted, honest / faulty, %:\n", *head(("", *(NAMES[a] for a in of_attack)))]
    for rule in by_mean(choosing, of_attack):
        cells = []
        for row in of_attack.values():
            numbers = row.get(rule, {})
            rates = [numbers.get(key) for key in ("accepted_honest", "accepted_faulty")]
            shown = ["-" if rate is None else f"{100 * rate:.0f}" for rate in rates]
            cells.append(" / ".join(shown) + _mark(row, rule) if numbers else "")
        lines.append(line((f"`{rule}`", *cells)))
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
    lines += head(("", *(PLACES[place] for place in places)))
    halves = {
        place: [row for name, row in table.items() if _is_half(name, place)] for place in places
    }
    full, fewer = _apart(halves)
    lines += _apart_lines(full, places)
    lines.append(
        f"\n`{OURS}` has the least in {least} of the {len(apart)} rows of all numbers of faulty "
        "sites but seven, where one site is left, among the rules with all seeds of the row"
        f"{_of_how_many(apart)}.\n"
    )
    if fewer:
        lines.append(
            f"With fewer seeds or attacks; in brackets `{OURS}` in the same runs, and how many:\n"
        )
        lines += head(("", *(PLACES[place] for place in places)))
        lines += [*_apart_lines(fewer, places), ""]
    several = [row[OURS] for row in table.values() if OURS in row and row[OURS]["seeds"] > 1]
    if several:
        stds = [numbers["std"] for numbers in several]
        lines.append(
            f"Between seeds the mean of the honest sites under `{OURS}` has a standard deviation "
            f"of {short(median(stds))} "
            f"(median of {len(stds)} rows; largest {short(max(stds))}).\n"
        )
    return "\n".join(lines)


Apart = dict[str, dict[str, tuple[float, str]]]  # rule -> place -> value, cell


def _apart(halves: Mapping[str, Sequence[Row]]) -> tuple[Apart, Apart]:
    """Return how far sites are apart: of rules with all runs of a place, and of the others."""
    full: Apart = {}
    fewer: Apart = {}
    for place, mine in halves.items():
        for rule in sorted({rule for row in mine for rule in row}):
            runs = [
                (row[rule]["apart_by_seed"][seed], row.get(OURS, {}).get("apart_by_seed", {}), seed)
                for row in mine
                if rule in row
                for seed in row[rule]["apart_by_seed"]
            ]
            if all(rule in complete(row) for row in mine):
                value = fmean(row[rule]["between_sites"] for row in mine)
                full.setdefault(rule, {})[place] = value, short(value)
                continue
            value = fmean(apart for apart, _, _ in runs)
            both = [(apart, ours[seed]) for apart, ours, seed in runs if seed in ours]
            cell = f"{short(value)} ({plural(len(runs), 'run')})"
            if both and rule != OURS:
                value, ours = (fmean(side) for side in zip(*both, strict=True))
                cell = f"{short(value)} ({short(ours)}; {plural(len(both), 'run')})"
            fewer.setdefault(rule, {})[place] = value, cell
    return full, fewer


def _apart_lines(apart: Apart, places: Sequence[str]) -> list[str]:
    def key(rule: str) -> tuple[float, str]:
        return fmean(apart[rule].get(place, (1.0, ""))[0] for place in places), rule

    return [
        line((f"`{rule}`", *(apart[rule].get(place, (0.0, ""))[1] for place in places)))
        for rule in sorted(apart, key=key)
    ]


def _of_how_many(apart: Mapping[str, Mapping[str, Any]]) -> str:
    counts = sorted(each["rules"] for each in apart.values())
    if not counts:
        return ""
    few, many = counts[0], counts[-1]
    return f" ({few if few == many else f'{few} to {many}'} rules, the yardsticks among them)"


def _is_half(name: str, place: str) -> bool:
    return name.startswith(f"{place}/") and name.endswith("/4")


def by_mean(rules: Iterable[str], of_attack: Mapping[str, Row]) -> list[str]:
    """Sort rules by their mean over the attacks, the best first; the yardsticks before all.

    Rules that lack seeds or attacks that others have stand last: their means are of other runs.
    """
    whole = {attack: complete(row) for attack, row in of_attack.items() if row}

    def key(rule: str) -> tuple[bool, bool, float, str]:
        means = [row[rule]["mean"] for row in of_attack.values() if rule in row]
        lacks = any(rule not in known for known in whole.values())
        return rule not in (ORACLE, LOCAL), lacks, -fmean(means), rule

    return sorted(rules, key=key)


def _ranked(row: Row) -> list[str]:
    whole = complete(row)
    return sorted(row, key=lambda rule: (rule not in whole, -row[rule]["mean"], rule))


def _score(row: Row, rule: str) -> str:
    numbers = row[rule]
    return f"{short(numbers['mean'])}/{short(numbers['worst'])}{_mark(row, rule)}"


def _mark(row: Row, rule: str) -> str:
    return "" if rule in complete(row) else f" ({row[rule]['seeds']})"


def short(value: float) -> str:
    """Write a share without its 0: .871."""
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0") else text


def _ordered(found: set[str], order: Iterable[str]) -> list[str]:
    return [each for each in order if each in found]


def head(titles: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    return [line(titles), "|" + "---|" * len(titles)]


def line(cells: Iterable[str]) -> str:
    """Return a table's line."""
    return f"| {' | '.join(cells)} |"
