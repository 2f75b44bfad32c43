"""What benchmarks of many runs share: one run, its score on validation, spreads, a file of all.

Not a benchmark itself.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.local_grid import run_here
from fedapp.results import versions
from fedapp.tasks import FOLLOWED, HEADLINES

Run = dict[str, Any]
Runs = dict[str, Run]

DATA: dict[str, dict[str, Any]] = {
    "heart": {"data.source": "embedded:heart"},
    "sentiment": {
        "data.source": "embedded:sentiment",
        "data.max-examples": 400,
        "data.test-fraction": 0.5,
    },
}
TABLE = {"federation.rounds": 5, "train.local-epochs": 1}
"""Data and length of the tables' runs."""


class Unmeasured(RuntimeError):
    """A run has ended, but a site could not measure its model."""


@dataclass(frozen=True)
class Results:
    """A file with one entry a run, written as runs end; a run that is there is not repeated.

    Attributes
    ----------
    path : Path
        JSON; several processes may add to it.
    derive : callable
        From all runs to what the file says of them together.
    """

    path: Path
    derive: Callable[[Runs], Mapping[str, Any]]

    def load(self) -> Runs:
        """Return the runs that are there already."""
        return json.loads(self.path.read_text())["runs"] if self.path.exists() else {}

    def save(self, key: str, run: Run) -> Runs:
        """Add one run and return all."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            runs = {**self.load(), key: run}
            self.write(runs)
        return runs

    def write(self, runs: Runs) -> None:
        """Write all runs and what they say together."""
        document = {
            "machine": {
                "cores": os.cpu_count(), "machine": platform.machine(), "python": sys.version
            },
            "versions": versions(),
            **self.derive(runs),
            "runs": runs,
        }  # fmt: skip
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        temporary.replace(self.path)

    def run(self, key: str, settings: Mapping[str, Any], traced: Sequence[str]) -> Runs:
        """Run one federation unless it is there, say so, and return all runs."""
        runs = self.load()
        if key in runs:
            return runs
        runs = self.save(key, run_entry(settings, traced))
        mean = runs[key]["test"]["personal"]["mean"]
        name = next((name for name in HEADLINES if name in mean), "loss")
        told = f"personal {HEADLINES.get(name, name)} {mean.get(name, float('nan')):.3f}"
        print(f"{time.strftime('%H:%M:%S')}  {key}: {told}", file=sys.stderr, flush=True)
        return runs


def run_entry(settings: Mapping[str, Any], traced: Sequence[str]) -> Run:
    """Run one federation and keep what the tables need: ``traced`` of every round."""
    started = time.process_time()
    summary, rows = run_here({"federation.progress-interval": 60.0, **settings})
    if lost := summary["missing"]:
        raise Unmeasured(f"a run without all of its measurements is not kept: {lost}")
    rounds = [row for row in rows if row["phase"] == "federation"]
    return {
        "settings": dict(settings),
        "test": {
            phase: {
                "mean": summary["mean"].get(phase, {}),
                "worst": summary["worst"].get(phase, {}),
                "sites": {s: p[phase] for s, p in summary["sites"].items() if phase in p},
            }
            for phase in ("local-only", "received", "personal")
        },
        "local_only_validation": _validation(rows, "local-only"),
        "rounds": [{key: row[key] for key in traced if key in row} for row in rounds],
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "adapter_digest": summary["adapter_digest"],
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def _validation(rows: list[dict[str, Any]], phase: str) -> dict[str, float]:
    mine = [r for r in rows if r["phase"] == phase and r.get("split") == "validation"]
    names = [name for name in FOLLOWED if mine and all(name in r for r in mine)]
    return {n: statistics.fmean(r[n] for r in mine) for n in names}


def score(run: Run, *, alone: bool = False) -> tuple[float, float]:
    """Return validation accuracy, and loss with the sign turned: the larger, the better.

    Of a federated method: the mean of received and personal models at the end; with ``alone``
    that of the local-only baseline in the same run.
    """
    if alone:
        validation = run["local_only_validation"]
        return validation["accuracy"], -validation["loss"]
    # The last round; where it asks a part of the sites only, as many rounds as would ask all.
    last = run["rounds"][-math.ceil(1 / run["settings"].get("federation.fraction", 1.0)) :]
    return (
        statistics.fmean((row["accuracy"] + row["received_accuracy"]) / 2 for row in last),
        -statistics.fmean((row["loss"] + row["received_loss"]) / 2 for row in last),
    )


def best_rate(of_rates: Mapping[float, Run], *, alone: bool = False) -> float:
    """Return the rate of the best `score`; of equal ones the higher rate."""
    return max(of_rates, key=lambda rate: (*score(of_rates[rate], alone=alone), rate))


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return mean, population standard deviation and number."""
    listed = list(values)
    return {
        "mean": statistics.fmean(listed), "std": statistics.pstdev(listed), "n": len(listed)
    }  # fmt: skip


def phase_spread(runs: Sequence[Run], phase: str) -> dict[str, Any]:
    """Return the spread over the runs (seeds) of the test metrics of a phase."""
    tests = [run["test"][phase] for run in runs if run["test"][phase]["mean"]]
    auc = [test["mean"]["auc"] for test in tests if "auc" in test["mean"]]
    return {
        **({"auc": spread(auc)} if auc else {}),
        "accuracy": spread(test["mean"]["accuracy"] for test in tests),
        "loss": spread(test["mean"]["loss"] for test in tests),
        "worst_accuracy": spread(test["worst"]["accuracy"] for test in tests),
    }


def traced_spread(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """Return the spread over the runs of what every one of them traced, means over its rounds."""
    return {
        name: spread(statistics.fmean(r[name] for r in run["rounds"] if name in r) for run in runs)
        for name in names
        if all(any(name in r for r in run["rounds"]) for run in runs)
    }


def describe_phase(phase: str, numbers: Mapping[str, Any]) -> str:
    """Return a cell of a printed table."""
    return (
        f"{phase} {numbers['accuracy']['mean']:.3f}±{numbers['accuracy']['std']:.3f} "
        f"(worst {numbers['worst_accuracy']['mean']:.3f}, "
        f"AUC {numbers.get('auc', {}).get('mean', float('nan')):.3f}, "
        f"loss {numbers['loss']['mean']:.3f}, n={numbers['accuracy']['n']})"
    )
