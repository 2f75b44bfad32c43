"""The comparison table: every method on real data, learning rates tuned on one grid.

Usage:
    python -m benchmarks.comparison grid --data heart sentiment --seeds 0
    python -m benchmarks.comparison chosen --data heart sentiment --seeds 0 1 2
    python -m benchmarks.comparison map --seeds 0 1
    python -m benchmarks.comparison print

``grid`` runs every method at every learning rate of `RATES`; ``chosen`` runs the further seeds at
each method's best rate; ``map`` does both in each of `REGIMES`, with the first seed at every rate
of `--rates` (on sentiment no method was best at 1e-3). A rate is chosen by validation metrics alone
(`choose`), never by a test figure, among those at which every method has run. Results go to
benchmarks/results/comparison.json, one entry a run, written as runs end; a run that is there is not
repeated. Runs take one core each (`benchmarks.local_grid`).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.local_grid import run_here
from fedapp.results import versions

RESULTS = Path(__file__).resolve().parent / "results" / "comparison.json"
RATES = (1e-3, 3e-3, 1e-2)
MAP_RATES = (3e-3, 1e-2, 3e-2)

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "svd": {"method": "svd"},
    "fedsvd": {"method": "fedsvd"},
    "subspace-reg": {"method": "subspace-reg"},
    # The orthonormal re-factorisation alone: the same server, no penalty at the sites.
    "ablation": {"method": "subspace-reg", "subspace-reg.mu": 0.0, "subspace-reg.alpha": 0.0},
}

VARIANTS: dict[str, dict[str, Any]] = {
    **METHODS,
    # The penalty of the runs behind the paper's tables: half of mu, over the number of layers.
    "released penalty": {
        "method": "subspace-reg",
        "subspace-reg.mu": 0.05,
        "subspace-reg.average-layers": True,
    },
}
RATE_OF = {"released penalty": "ablation"}  # so weak that the ablation's rate is its own

DATA: dict[str, dict[str, Any]] = {
    "heart": {"data.source": "embedded:heart"},
    "sentiment": {
        "data.source": "embedded:sentiment",
        "data.max-examples": 400,
        "data.test-fraction": 0.5,
    },
}
TABLE = {"federation.rounds": 5, "train.local-epochs": 1}

_TEN = {
    "data.source": "embedded:sentiment",
    "data.partition": "dirichlet",
    "data.sites": 10,
    "data.one-class": "allow",
    "data.max-examples": 100,
    "data.test-fraction": 0.4,
    "data.dirichlet-alpha": 0.3,
    "federation.rounds": 10,
    "federation.fraction": 0.3,
    "train.local-epochs": 1,
}
REGIMES: dict[str, dict[str, Any]] = {
    "Dirichlet 0.3, 3 of 10": _TEN,
    "Dirichlet 0.3, 10 of 10": {**_TEN, "federation.fraction": 1.0, "federation.rounds": 4},
    "Dirichlet 5, 3 of 10": {**_TEN, "data.dirichlet-alpha": 5.0},
    "Dirichlet 0.3, 3 of 10, 4 epochs": {**_TEN, "train.local-epochs": 4},
    "multiple choice, 4 of 4": {
        "data.source": "embedded:sentiment-choices",
        "model.task": "multiple-choice",
        "data.max-examples": 100,
        "data.test-fraction": 0.4,
        # About 150 steps of a site in all: for the first fifty the loss does not move.
        "federation.rounds": 6,
        "train.local-epochs": 2,
        "train.batch-size": 4,
        "train.eval-batch-size": 16,
    },
}
MAPPED = ("fedavg", "svd", "subspace-reg", "ablation", "released penalty")

TRACED = (
    "accuracy", "loss", "received_accuracy", "received_loss", "overlap", "overlap_squared",
    "cancellation", "cancellation_increment", "client_global_cosine", "pairwise_cosine",
    "merge_error",
)  # fmt: skip
SHOWN = ("overlap", "cancellation", "cancellation_increment", "merge_error")


def run_entry(settings: dict[str, Any]) -> dict[str, Any]:
    """Run one federation and keep what the tables need."""
    started = time.process_time()
    summary, rows = run_here(settings)
    rounds = [row for row in rows if row["phase"] == "federation"]
    return {
        "settings": settings,
        "test": {
            phase: {
                "mean": summary["mean"].get(phase, {}),
                "worst": summary["worst"].get(phase, {}),
                "sites": {s: p[phase] for s, p in summary["sites"].items() if phase in p},
            }
            for phase in ("local-only", "received", "personal")
        },
        "local_only_validation": _validation(rows, "local-only"),
        "rounds": [{key: row[key] for key in TRACED if key in row} for row in rounds],
        "bytes_up": summary["bytes_up"],
        "adapter_digest": summary["adapter_digest"],
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def _validation(rows: list[dict[str, Any]], phase: str) -> dict[str, float]:
    mine = [r for r in rows if r["phase"] == phase and r.get("split") == "validation"]
    names = ("accuracy", "loss")
    return {n: statistics.fmean(r[n] for r in mine) for n in names if mine}


def choose(runs: dict[str, Any], data: str, method: str) -> float:
    """Return the rate with the best validation accuracy of seed 0.

    Of a federated method: the mean of received and personal models at the end; of local-only: its
    own. Ties go to the lower validation loss.
    """
    source = "fedavg" if method == "local-only" else RATE_OF.get(method, method)
    rates = _rates(runs, data)
    keys = {rate: _key(data, source, rate, 0) for rate in rates}
    if not rates or any(key not in runs for key in keys.values()):
        raise SystemExit(f"{data}/{method} has not run at every rate yet")
    scores = {rate: _score(runs[key], method) for rate, key in keys.items()}
    return max(rates, key=lambda rate: (scores[rate][0], -scores[rate][1], rate))


def _rates(runs: dict[str, Any], place: str) -> tuple[float, ...]:
    """Return the grid of a place; of a regime, the rates at which every method has run."""
    if place not in REGIMES:
        return RATES
    methods = [method for method in MAPPED if method not in RATE_OF]
    return tuple(
        rate for rate in MAP_RATES if all(_key(place, m, rate, 0) in runs for m in methods)
    )


def _score(run: dict[str, Any], method: str) -> tuple[float, float]:
    if method == "local-only":
        validation = run["local_only_validation"]
        return validation["accuracy"], validation["loss"]
    # The last round; where it asks a part of the sites only, as many rounds as would ask all.
    last = run["rounds"][-math.ceil(1 / run["settings"].get("federation.fraction", 1.0)) :]
    return (
        statistics.fmean((row["accuracy"] + row["received_accuracy"]) / 2 for row in last),
        statistics.fmean((row["loss"] + row["received_loss"]) / 2 for row in last),
    )


def _key(place: str, method: str, rate: float, seed: int) -> str:
    return f"{place}/{method}/{rate:g}/seed{seed}"


def _settings(place: dict[str, Any], method: str, rate: float, seed: int, alone: bool) -> Any:
    return {
        **place,
        **VARIANTS[method],
        "train.learning-rate": rate,
        "seed": seed,
        "federation.local-only": alone,
        "federation.progress-interval": 60.0,
    }


def load() -> dict[str, Any]:
    """Return the runs that are there already."""
    return json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}


def save(key: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Add one run to the file, which other processes write too; return all that are there."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = {**load(), key: entry}
        write(runs)
    return runs


def write(runs: dict[str, Any]) -> None:
    """Write all runs and what they say together."""
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": sys.version}
    document = {
        "machine": machine,
        "versions": versions(),
        "rates": RATES,
        "table": table(runs),
        "map": regime_map(runs),
        "runs": runs,
    }
    temporary = RESULTS.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    temporary.replace(RESULTS)


def _run(
    runs: dict[str, Any], place: str, method: str, rate: float, seed: int, alone: bool
) -> None:
    key = _key(place, method, rate, seed)
    runs.update(load())
    if key in runs:
        return
    base = {**DATA[place], **TABLE} if place in DATA else REGIMES[place]
    runs.update(save(key, run_entry(_settings(base, method, rate, seed, alone))))
    mean = runs[key]["test"]["personal"]["mean"].get("accuracy", float("nan"))
    print(f"{time.strftime('%H:%M:%S')}  {key}: personal {mean:.3f}", file=sys.stderr, flush=True)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return mean, population standard deviation and number."""
    listed = list(values)
    return {
        "mean": statistics.fmean(listed), "std": statistics.pstdev(listed), "n": len(listed)
    }  # fmt: skip


def table(runs: dict[str, Any]) -> dict[str, Any]:
    """Per data set and method, at its chosen rate: test metrics and last-round diagnostics."""
    result: dict[str, Any] = {}
    for data in DATA:
        for method in ("local-only", *METHODS):
            try:
                rate = choose(runs, data, method)
            except SystemExit:
                continue
            source = "fedavg" if method == "local-only" else method
            mine = [
                run for key, run in sorted(runs.items())
                if key.startswith(f"{data}/{source}/{rate:g}/")
                and (method != "local-only" or run["test"]["local-only"]["mean"])
            ]  # fmt: skip
            phases = ("local-only",) if method == "local-only" else ("received", "personal")
            row: dict[str, Any] = {"rate": rate, "phases": {p: _phase(mine, p) for p in phases}}
            if method != "local-only":
                row["diagnostics"] = _diagnostics(mine)
            result.setdefault(data, {})[method] = row
    return result


def regime_map(runs: dict[str, Any]) -> dict[str, Any]:
    """Per regime and method: test metrics and diagnostics."""
    result: dict[str, Any] = {}
    for regime in REGIMES:
        for method in MAPPED:
            try:
                rate = choose(runs, regime, method)
            except SystemExit:
                continue
            start = f"{regime}/{method}/{rate:g}/"
            mine = [r for k, r in sorted(runs.items()) if k.startswith(start)]
            if mine:
                result.setdefault(regime, {})[method] = {
                    "rate": rate,
                    "phases": {phase: _phase(mine, phase) for phase in ("received", "personal")},
                    "diagnostics": _diagnostics(mine),
                }
    return result


def _phase(mine: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    tests = [run["test"][phase] for run in mine if run["test"][phase]["mean"]]
    auc = [test["mean"]["auc"] for test in tests if "auc" in test["mean"]]
    return {
        **({"auc": spread(auc)} if auc else {}),
        "accuracy": spread(test["mean"]["accuracy"] for test in tests),
        "loss": spread(test["mean"]["loss"] for test in tests),
        "worst_accuracy": spread(test["worst"]["accuracy"] for test in tests),
    }


def _diagnostics(mine: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: spread(statistics.fmean(r[name] for r in run["rounds"] if name in r) for run in mine)
        for name in TRACED[4:]
        if all(any(name in r for r in run["rounds"]) for run in mine)
    }


def show(runs: dict[str, Any]) -> None:
    """Print both tables."""
    for title, content in (*table(runs).items(), *regime_map(runs).items()):
        print(f"\n{title}")
        for method, row in content.items():
            cells = [f"{method:14s} lr {row['rate']:<6g}"]
            for phase, p in row["phases"].items():
                cells.append(
                    f"{phase} {p['accuracy']['mean']:.3f}±{p['accuracy']['std']:.3f} "
                    f"(worst {p['worst_accuracy']['mean']:.3f}, "
                    f"AUC {p.get('auc', {}).get('mean', float('nan')):.3f}, "
                    f"loss {p['loss']['mean']:.3f}, n={p['accuracy']['n']})"
                )
            traced = row.get("diagnostics", {})
            cells += [f"{name} {traced[name]['mean']:.4f}" for name in SHOWN if name in traced]
            print("  " + "  ".join(cells))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "stage", nargs="?", default="print", choices=("grid", "chosen", "map", "print")
    )
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=list(REGIMES))
    parser.add_argument("--rates", type=float, nargs="+", default=MAP_RATES[:2], choices=MAP_RATES)
    parser.add_argument("--mapped", nargs="+", default=list(MAPPED), choices=MAPPED)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    runs = load()
    if options.stage == "grid":
        for seed in options.seeds:
            for data in options.data:
                for method in options.methods:
                    for rate in RATES:
                        _run(runs, data, method, rate, seed, alone=method == "fedavg")
    elif options.stage == "chosen":
        for seed in options.seeds:
            for data in options.data:
                for method in options.methods:
                    rate = choose(runs, data, method)
                    _run(runs, data, method, rate, seed, alone=method == "fedavg")
                alone = choose(runs, data, "local-only")
                _run(runs, data, "fedavg", alone, seed, alone=True)
    elif options.stage == "map":
        for seed in options.seeds:
            for regime in options.regimes:
                for method in options.mapped:
                    tuning = seed == options.seeds[0] and method not in RATE_OF
                    for rate in options.rates if tuning else [choose(runs, regime, method)]:
                        _run(runs, regime, method, rate, seed, alone=False)
    show(runs)


if __name__ == "__main__":
    main()
