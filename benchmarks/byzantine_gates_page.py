"""LIGHTYEAR's gates compared, as docs/gates.md. Not a benchmark itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from benchmarks.byzantine_page import PLACES, head, line, of_place, short
from benchmarks.byzantine_table import AVERAGE, LOCAL, ORACLE, OURS, Runs, Table, claims, rows

FAULTY = (4, 6, 7)
GATES = {
    OURS: "the default",
    "calibrated-kernel": "the kernel, calibrated, 0.4",
    "fixed-kernel": "the kernel, fixed, 0.85",
    "prediction": "predictions, 0.2",
    "distance": "distances: 0.9; of LoRA 3, and 1.1 of the head",
    "all-gates": "calibrated kernel, predictions and distances",
}
HEAD = """\
# LIGHTYEAR's gates, one kind at a time and all together

Made by `python -m benchmarks.byzantine_gates page` from `benchmarks/results/byzantine_gates.json`
and `byzantine.json`: the places, sites, attacks and seeds of the grid, where the numbers are
explained ([byzantine.md](byzantine.md)), and LIGHTYEAR with other gates than its default's. The
default has all of them for a model that is trained whole (writers), and the distances alone for
LoRA beside a head (texts): these two choices repeat it.

A claim is that of the grid: 95 % of the oracle with half of the sites faulty, not a point below
local-only with six or seven of eight, not a point below the plain average without attack. Means are
over the honest sites, the attacks and the seeds; the last two columns are of half of the sites
faulty.
"""


def kept(runs: Runs, grid: Runs) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, for every choice of gates and place, how many of the grid's claims it keeps."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for gate in GATES:
        table = rows({**_yardsticks(grid), **dict(_as_ours(gate, {**grid, **runs}))})
        for name, claim in claims(table).items():
            told = found.setdefault(gate, {}).setdefault(
                name.split("/")[0], {"claims": 0, "holds": 0, "fails": []}
            )
            told["claims"] += 1
            told["holds"] += claim["holds"]
            told["fails"] += [] if claim["holds"] else [name]
    return found


def page(runs: Runs, grid: Runs) -> str:
    """Return the page's text, Markdown."""
    mine = {key: run for key, run in grid.items() if _rule(key) in (*GATES, AVERAGE, LOCAL, ORACLE)}
    table = rows({**mine, **runs})
    table = {
        name: row for name, row in table.items() if int(name.rpartition("/")[2]) in (0, *FAULTY)
    }
    parts, told = [HEAD], kept(runs, grid)
    for place, title in PLACES.items():
        of_it = {name: row for name, row in table.items() if name.startswith(f"{place}/")}
        if of_it:
            parts += [f"## {title}\n", _summary(place, of_it, told), *of_place(place, of_it)]
    return "\n".join(parts)


def _summary(place: str, table: Table, told: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    titles = ("", "gates", "claims", "no attack", *(f"{n} of 8" for n in FAULTY), "honest let in")
    lines = head((*titles, "faulty let in"))
    for gate, words in GATES.items():
        if (claim := told.get(gate, {}).get(place)) is None:
            continue
        means = [
            fmean(row[gate]["mean"] for name, row in table.items() if name.endswith(f"/{count}"))
            for count in (0, *FAULTY)
        ]
        halves = [row[gate] for name, row in table.items() if name.endswith("/4")]
        shares = [
            fmean(each[key] for each in halves) for key in ("accepted_honest", "accepted_faulty")
        ]
        cells = (*map(short, means), *(f"{share:.0%}" for share in shares))
        lines.append(line((f"`{gate}`", words, f"{claim['holds']} of {claim['claims']}", *cells)))
    return "\n".join([*lines, ""])


def _yardsticks(grid: Runs) -> Runs:
    return {key: run for key, run in grid.items() if _rule(key) in (AVERAGE, LOCAL, ORACLE)}


def _as_ours(gate: str, runs: Runs) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the runs of a choice of gates under the name of the rule that the claims are about."""
    for key, run in runs.items():
        place, attack, faulty, rule, seed = key.split("/")
        if rule == gate and int(faulty) in (0, *FAULTY):
            yield f"{place}/{attack}/{faulty}/{OURS}/{seed}", run


def _rule(key: str) -> str:
    return key.split("/")[3]
