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
from pathlib import Path
from typing import Any

from benchmarks.sweep import (
    DATA,
    TABLE,
    Results,
    best_rate,
    describe_phase,
    phase_spread,
    traced_spread,
)

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


def choose(runs: dict[str, Any], data: str, method: str) -> float:
    """Return the rate with the best validation accuracy of seed 0.

    Of a federated method: the mean of received and personal models at the end; of local-only: its
    own. Ties go to the lower validation loss.
    """
    source = "fedavg" if method == "local-only" else RATE_OF.get(method, method)
    keys = {rate: _key(data, source, rate, 0) for rate in _rates(runs, data)}
    if not keys or any(key not in runs for key in keys.values()):
        raise SystemExit(f"{data}/{method} has not run at every rate yet")
    of_rates = {rate: runs[key] for rate, key in keys.items()}
    return best_rate(of_rates, alone=method == "local-only")


def _rates(runs: dict[str, Any], place: str) -> tuple[float, ...]:
    """Return the grid of a place; of a regime, the rates at which every method has run."""
    if place not in REGIMES:
        return RATES
    methods = [method for method in MAPPED if method not in RATE_OF]
    return tuple(
        rate for rate in MAP_RATES if all(_key(place, m, rate, 0) in runs for m in methods)
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
    }


def _run(place: str, method: str, rate: float, seed: int, alone: bool) -> dict[str, Any]:
    base = {**DATA[place], **TABLE} if place in DATA else REGIMES[place]
    settings = _settings(base, method, rate, seed, alone)
    return RESULTS.run(_key(place, method, rate, seed), settings, TRACED)


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
            row: dict[str, Any] = {
                "rate": rate,
                "phases": {p: phase_spread(mine, p) for p in phases},
            }
            if method != "local-only":
                row["diagnostics"] = traced_spread(mine, TRACED[4:])
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
                    "phases": {
                        phase: phase_spread(mine, phase) for phase in ("received", "personal")
                    },
                    "diagnostics": traced_spread(mine, TRACED[4:]),
                }
    return result


RESULTS = Results(
    Path(__file__).resolve().parent / "results" / "comparison.json",
    lambda runs: {"rates": RATES, "table": table(runs), "map": regime_map(runs)},
)


def show(runs: dict[str, Any]) -> None:
    """Print both tables."""
    for title, content in (*table(runs).items(), *regime_map(runs).items()):
        print(f"\n{title}")
        for method, row in content.items():
            cells = [f"{method:14s} lr {row['rate']:<6g}"]
            cells += [describe_phase(phase, found) for phase, found in row["phases"].items()]
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
    runs = RESULTS.load()
    if options.stage == "grid":
        for seed in options.seeds:
            for data in options.data:
                for method in options.methods:
                    for rate in RATES:
                        runs = _run(data, method, rate, seed, alone=method == "fedavg")
    elif options.stage == "chosen":
        for seed in options.seeds:
            for data in options.data:
                for method in options.methods:
                    rate = choose(runs, data, method)
                    runs = _run(data, method, rate, seed, alone=method == "fedavg")
                alone = choose(runs, data, "local-only")
                runs = _run(data, "fedavg", alone, seed, alone=True)
    elif options.stage == "map":
        for seed in options.seeds:
            for regime in options.regimes:
                for method in options.mapped:
                    tuning = seed == options.seeds[0] and method not in RATE_OF
                    for rate in options.rates if tuning else [choose(runs, regime, method)]:
                        runs = _run(regime, method, rate, seed, alone=False)
    show(runs)


if __name__ == "__main__":
    main()
