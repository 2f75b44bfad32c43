"""What the grid of attacks and rules says: means over seeds, and the claims, true or not.

Not a benchmark itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

Runs = Mapping[str, Mapping[str, Any]]
Row = Mapping[str, Mapping[str, Any]]
Table = dict[str, dict[str, Any]]
"""``place/attack/faulty`` -> rule -> numbers."""

LOCAL, ORACLE, AVERAGE, OURS = "local-only", "oracle", "average", "lightyear"
CENTRAL = "fedavg"


def rows(runs: Runs) -> Table:
    """Return, for every place, attack and number of faulty sites, every rule's means over seeds.

    ``local-only`` and the oracle stand in every row: the one with the accuracies of the row's
    honest sites, the other as it ran with so many faulty ones; both of the seeds in which other
    rules of the row have run.
    """
    grouped: dict[tuple[str, str, str], dict[str, dict[str, Mapping[str, Any]]]] = {}
    for key, run in runs.items():
        place, attack, faulty, rule, seed = key.split("/")
        grouped.setdefault((place, attack, faulty), {}).setdefault(rule, {})[seed] = run
    table: Table = {}
    for (place, attack, faulty), of_rule in sorted(grouped.items()):
        if attack == "none" and faulty != "0":
            continue  # the oracle's
        beside = {ORACLE: grouped.get((place, "none", faulty), {}).get(ORACLE, {})}
        alone = grouped.get((place, "none", "0"), {}).get(LOCAL, {})
        beside[LOCAL] = _among_honest(alone, [*of_rule.values(), beside[ORACLE]])
        run = {seed for rule in of_rule if rule not in beside for seed in of_rule[rule]}
        for rule, seeds in beside.items():
            beside[rule] = {seed: seeds[seed] for seed in seeds if seed in run or not run}
        every = {rule: seeds for rule, seeds in {**of_rule, **beside}.items() if seeds}
        table[f"{place}/{attack}/{faulty}"] = {
            rule: _numbers(seeds) for rule, seeds in every.items()
        }
    return table


def _among_honest(
    alone: Mapping[str, Mapping[str, Any]], others: Sequence[Mapping[str, Mapping[str, Any]]]
) -> dict[str, Mapping[str, Any]]:
    """Return local-only runs, each with the sites that are honest in a run of the same seed."""
    found: dict[str, Mapping[str, Any]] = {}
    for seed, run in alone.items():
        for seeds in others:
            if seed in seeds:
                names = seeds[seed]["accuracy"]
                found[seed] = {"accuracy": {n: run["accuracy"][n] for n in names}}
                break
    return found


def _numbers(seeds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    runs = list(seeds.values())
    accuracy = [list(run["accuracy"].values()) for run in runs]
    numbers: dict[str, Any] = {
        "mean": fmean(map(fmean, accuracy)),
        "std": pstdev(map(fmean, accuracy)),
        "worst": fmean(map(min, accuracy)),
        "between_sites": fmean(map(pstdev, accuracy)),
        "seeds": len(runs),
        "by_seed": {seed: fmean(run["accuracy"].values()) for seed, run in sorted(seeds.items())},
        "apart_by_seed": {
            seed: pstdev(run["accuracy"].values()) for seed, run in sorted(seeds.items())
        },
    }
    for name in ("accepted_honest", "accepted_faulty", "faulty_weight"):
        values = [run[name] for run in runs if run.get(name) is not None]
        if values:
            numbers[name] = fmean(values)
    return numbers


def complete(row: Row) -> list[str]:
    """Return the rules of a row that can be compared: those with all of its seeds, by name.

    The seeds of a row are those of all its rules but the yardsticks.
    """
    rules = [rule for rule in row if rule not in (ORACLE, LOCAL)] or list(row)
    seeds = {seed for rule in rules for seed in row[rule]["by_seed"]}
    return sorted(rule for rule in row if set(row[rule]["by_seed"]) == seeds)


def claims(table: Table) -> dict[str, dict[str, Any]]:
    """Return for every row what was aimed at, what came, and whether it holds.

    Of our default: at least 95 % of the oracle with half of the sites faulty, at most one point
    below local-only with six or seven of eight, or below the plain average without
    attack. Both sides are means over the seeds that both have, while the grid is not complete;
    ``fails`` names those seeds in which it does not hold by itself.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, row in table.items():
        faulty = int(name.rpartition("/")[2])
        aim, rule, factor, slack = {
            0: ("not below the average - 1 point", AVERAGE, 1.0, 0.01),
            4: ("95 % of the oracle", ORACLE, 0.95, 0.0),
            6: ("not below local-only - 1 point", LOCAL, 1.0, 0.01),
            7: ("not below local-only - 1 point", LOCAL, 1.0, 0.01),
        }.get(faulty, ("", "", 0.0, 0.0))
        ours, theirs = (row.get(each, {}).get("by_seed", {}) for each in (OURS, rule))
        if both := sorted(ours.keys() & theirs.keys()):
            got = fmean(ours[seed] for seed in both)
            bound = factor * fmean(theirs[seed] for seed in both) - slack
            found[name] = {
                "claim": aim, "bound": bound, "got": got, "holds": got >= bound, "seeds": len(both),
                "fails": [seed for seed in both if ours[seed] < factor * theirs[seed] - slack],
            }  # fmt: skip
    return found


def spreads(table: Table) -> dict[str, dict[str, Any]]:
    """Return for every row which rule's accuracies differ least from site to site, and ours.

    Of the rules with all seeds of the row, among which there must be others than the yardsticks.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, row in table.items():
        if name.endswith("/7"):  # of one site there is none
            continue
        rules = complete(row)
        if OURS in rules and not {OURS, LOCAL, ORACLE}.issuperset(rules):
            least = min(rules, key=lambda rule: (row[rule]["between_sites"], rule))
            found[name] = {
                "rules": len(rules),
                "least": least,
                "its": row[least]["between_sites"],
                "ours": row[OURS]["between_sites"],
            }
    return found


def below_local_only(table: Table) -> dict[str, bool]:
    """Return for every row with half of the sites faulty or more if FedAvg is below local-only.

    By however little; over the seeds that both have.
    """
    found = {}
    for name, row in table.items():
        theirs, alone = (row.get(rule, {}).get("by_seed", {}) for rule in (CENTRAL, LOCAL))
        both = sorted(theirs.keys() & alone.keys())
        if both and int(name.rpartition("/")[2]) >= 4:
            found[name] = fmean(theirs[s] for s in both) < fmean(alone[s] for s in both)
    return found


def show(runs: Runs) -> str:
    """Return the table as text: mean (worst) [honest accepted, faulty accepted]."""
    table = rows(runs)
    lines = []
    for name, row in table.items():
        lines.append(f"\n{name}")
        for rule, numbers in sorted(row.items(), key=lambda item: -item[1]["mean"]):
            rates = [numbers.get(key) for key in ("accepted_honest", "accepted_faulty")]
            told = ", ".join("-" if rate is None else f"{rate:.2f}" for rate in rates)
            lines.append(
                f"  {rule:16s} {numbers['mean']:.3f} +- {numbers['std']:.3f} "
                f"(worst {numbers['worst']:.3f}, between sites {numbers['between_sites']:.3f}) "
                f"[{told}]  n={numbers['seeds']}"
            )
    for name, claim in claims(table).items():
        verdict = "holds" if claim["holds"] else "FAILS"
        lines.append(
            f"{verdict}: {name}: {claim['claim']}: {claim['got']:.3f}, bound {claim['bound']:.3f}"
            + (f"; fails in {', '.join(claim['fails'])}" if claim["fails"] else "")
        )
    apart, fallen = spreads(table), below_local_only(table)
    ours = sum(each["least"] == OURS for each in apart.values())
    lines.append(f"least difference between sites: {OURS} in {ours} of {len(apart)} rows")
    lines.append(f"{CENTRAL} below local-only: {sum(fallen.values())} of {len(fallen)} rows")
    return "\n".join(lines)
