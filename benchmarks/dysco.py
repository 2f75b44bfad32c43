"""Dysco on real data: five algorithms with and without it, and the baselines, on one grid.

Usage:
    python -m benchmarks.dysco run --data heart sentiment --seeds 0 1 2
    python -m benchmarks.dysco run --only dysco --seeds 0      rows whose name begins so
    python -m benchmarks.dysco print

A row is a method under an algorithm. With the first seed every row climbs the grid `RATES` until
its validation accuracy has fallen by more than `FALL` below its best; the rate with the best
validation accuracy (never a test figure) serves the further seeds. Local-only is trained in the
runs of ``fedavg`` and chosen by its own. Knobs of the algorithms are those of their papers
(`fedapp/config_algorithms.py`), with and without Dysco.

Results: benchmarks/results/dysco.json. A run takes one core; several processes may run at once.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.sweep import (
    DATA,
    TABLE,
    Results,
    Run,
    Runs,
    best_rate,
    describe_phase,
    phase_spread,
    score,
    traced_spread,
)

RATES = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
FALL = 0.01
ALGORITHMS = ("fedavg", "fedavgm", "fedprox", "scaffold", "fednova")
CONTROLS = ("random-boost", "ffa-lora", "fedsa-lora")
ROWS: dict[str, dict[str, Any]] = {
    **{
        name: {"method": method, "federation.algorithm": algorithm}
        for algorithm in ALGORITHMS
        for method, name in (("fedavg", algorithm), ("dysco", f"dysco+{algorithm}"))
    },
    **{name: {"method": name} for name in CONTROLS},
}
LOCAL = "local-only"

MEASURED = (
    "basis_agreement", "insensitive_share", "folded_rank", "truncation_error", "cancellation",
    "interference", "interference_sum", "own_effect", "interference_ratio", "variate_error",
    "momentum_error",
)  # fmt: skip
TRACED = ("accuracy", "loss", "received_accuracy", "received_loss", *MEASURED)


def key(data: str, row: str, rate: float, seed: int) -> str:
    """Return the name of a run in the results."""
    return f"{data}/{row}/{rate:g}/seed{seed}"


def settings(data: str, row: str, rate: float, seed: int) -> dict[str, Any]:
    """Return the settings of a run."""
    return {
        **DATA[data], **TABLE, **ROWS[row],
        "train.learning-rate": rate,
        "seed": seed,
        "federation.local-only": row == "fedavg",
        "federation.interference-each": True,
    }  # fmt: skip


def tried(runs: Runs, data: str, row: str) -> dict[float, Run]:
    """Return the first seed's runs of a row, by rate."""
    keys = {rate: key(data, row, rate, 0) for rate in RATES}
    return {rate: runs[name] for rate, name in keys.items() if name in runs}


def complete(of_rates: dict[float, Run]) -> bool:
    """Whether the climb has ended."""
    if len(of_rates) == len(RATES):
        return True
    alone = [False, *([True] if _has_local(of_rates) else [])]
    return len(of_rates) > 1 and all(_fallen(of_rates, of_alone) for of_alone in alone)


def _has_local(of_rates: dict[float, Run]) -> bool:
    return any(run["local_only_validation"] for run in of_rates.values())


def _fallen(of_rates: dict[float, Run], alone: bool) -> bool:
    accuracies = [score(run, alone=alone)[0] for run in of_rates.values()]
    return accuracies[-1] < max(accuracies) - FALL


def tune(results: Results, data: str, row: str) -> Runs:
    """Run the first seed up the grid."""
    runs = results.load()
    for rate in RATES:
        if complete(tried(runs, data, row)):
            break
        runs = results.run(key(data, row, rate, 0), settings(data, row, rate, 0), TRACED)
    return runs


def further(results: Results, data: str, row: str, seed: int) -> None:
    """Run another seed at the chosen rate; for fedavg at that of local-only as well."""
    of_rates = tried(results.load(), data, row)
    rates = {best_rate(of_rates)}
    if row == "fedavg":
        rates.add(best_rate(of_rates, alone=True))
    for rate in sorted(rates):
        results.run(key(data, row, rate, seed), settings(data, row, rate, seed), TRACED)


def table(runs: Runs) -> dict[str, Any]:
    """Per data set and row, at its chosen rate: test metrics and what was measured beside."""
    result: dict[str, Any] = {}
    for data in DATA:
        for row in (LOCAL, *ROWS):
            source = "fedavg" if row == LOCAL else row
            of_rates = tried(runs, data, source)
            if not complete(of_rates):
                continue
            rate = best_rate(of_rates, alone=row == LOCAL)
            start = f"{data}/{source}/{rate:g}/"
            mine = [run for name, run in sorted(runs.items()) if name.startswith(start)]
            phases = (LOCAL,) if row == LOCAL else ("received", "personal")
            entry: dict[str, Any] = {
                "rate": rate,
                "tried": {
                    f"{r:g}": score(run, alone=row == LOCAL)[0] for r, run in of_rates.items()
                },
                "phases": {phase: phase_spread(mine, phase) for phase in phases},
            }
            if row != LOCAL:
                entry["measured"] = traced_spread(mine, MEASURED)
                entry["bytes_per_round"] = {
                    way: statistics.fmean(run[f"bytes_{way}"] for run in mine)
                    / TABLE["federation.rounds"]
                    for way in ("up", "down")
                }
            result.setdefault(data, {})[row] = entry
    return result


RESULTS = Results(
    Path(__file__).resolve().parent / "results" / "dysco.json",
    lambda runs: {"rates": RATES, "table": table(runs)},
)


def show(runs: Runs) -> None:
    """Print the tables."""
    for data, rows in table(runs).items():
        print(f"\n{data}")
        for name, row in rows.items():
            cells = [describe_phase(phase, found) for phase, found in row["phases"].items()]
            measured = row.get("measured", {})
            cells += [f"{m} {measured[m]['mean']:.4f}" for m in MEASURED if m in measured]
            print("  " + "  ".join([f"{name:14s} lr {row['rate']:<6g}", *cells]))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", nargs="?", default="print", choices=("run", "print"))
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of rows, in this order")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    if options.stage == "run":
        rows = [row for start in options.only for row in ROWS if row.startswith(start)]
        for data in options.data:
            for row in rows:
                tune(RESULTS, data, row)
                for seed in options.seeds:
                    further(RESULTS, data, row, seed)
    show(RESULTS.load())


if __name__ == "__main__":
    main()
