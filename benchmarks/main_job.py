"""The main job over seeds and methods, and leave-one-hospital-out, by `fedapp run`.

Usage:
    .venv/bin/python benchmarks/main_job.py --seeds 0 1 2 --methods subspace-reg fedavg
    .venv/bin/python benchmarks/main_job.py --leave-one-out --methods subspace-reg --seeds 0 1 2

Results go to benchmarks/results/main_job.json and leave_one_out.json, one entry a run, written as
the runs end; an entry that is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
HEART = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
KEPT = ("method", "seed", "rounds", "sites", "mean", "worst", "held_out", "wall_seconds",
        "training_seconds", "bytes_up", "bytes_down", "versions")  # fmt: skip


def run_once(method: str, seed: int, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run one federation in a throw-away folder and return the kept part of its summary."""
    with tempfile.TemporaryDirectory() as folder:
        fedapp = str(Path(sys.executable).with_name("fedapp"))
        command = [fedapp, "run", str(HERE.parent), "--method", method]
        command += ["--seed", str(seed), "--name", "bench", "--output-dir", folder, *extra]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=sys.stderr)
        seconds = time.perf_counter() - started
        summary = json.loads(Path(folder, "bench", "summary.json").read_text())
    return {key: summary[key] for key in KEPT if key in summary} | {"command_seconds": seconds}


def remember(path: Path, entries: dict[str, Any], summarise: Any) -> None:
    """Write the entries and what they say together."""
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": sys.version}
    document = {"machine": machine, "summary": summarise(entries), "runs": entries}
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def known(path: Path) -> dict[str, Any]:
    """Return the entries that are there already."""
    return json.loads(path.read_text())["runs"] if path.exists() else {}


def spread(values: list[float]) -> dict[str, float]:
    """Return mean and population standard deviation."""
    return {"mean": statistics.fmean(values), "std": statistics.pstdev(values), "n": len(values)}


def summarise_methods(entries: dict[str, Any]) -> dict[str, Any]:
    """Per method and phase: mean and worst hospital's accuracy and AUC over the seeds."""
    table: dict[str, Any] = {}
    for method in sorted({run["method"] for run in entries.values()}):
        runs = [run for run in entries.values() if run["method"] == method]
        table[method] = {
            phase: {
                "mean_accuracy": spread([run["mean"][phase]["accuracy"] for run in runs]),
                "mean_auc": spread([run["mean"][phase]["auc"] for run in runs]),
                "worst_accuracy": spread([run["worst"][phase]["accuracy"] for run in runs]),
            }
            for phase in ("local-only", "received", "personal")
        }
        # Delete the time of a run that shared the machine; the metrics do not depend on it.
        timed = [run["command_seconds"] for run in runs if "command_seconds" in run]
        if timed:
            table[method]["command_seconds"] = spread(timed)
    return table


def summarise_held_out(entries: dict[str, Any]) -> dict[str, Any]:
    """Per hospital: the federated model of the others, tested where nobody trained."""
    table: dict[str, Any] = {}
    for site in HEART:
        tested = [run["held_out"][site] for run in entries.values() if site in run["held_out"]]
        if tested:
            table[site] = {
                name: spread([row["received"][name] for row in tested])
                for name in ("accuracy", "auc", "f1")
            }
    return table


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["subspace-reg", "fedavg"])
    parser.add_argument("--leave-one-out", action="store_true")
    options = parser.parse_args()
    path = RESULTS / ("leave_one_out.json" if options.leave_one_out else "main_job.json")
    summarise = summarise_held_out if options.leave_one_out else summarise_methods
    entries = known(path)
    for seed in options.seeds:
        for method in options.methods:
            for site in HEART if options.leave_one_out else ("",):
                key = "/".join(part for part in (method, f"seed{seed}", site) if part)
                if key in entries:
                    continue
                extra = ("-c", f"federation.held-out={site!r} federation.local-only=false")
                entries[key] = run_once(method, seed, extra if site else ())
                remember(path, entries, summarise)


if __name__ == "__main__":
    main()
