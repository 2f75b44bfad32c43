"""Memory of SuperLink, executor, SuperNodes and site services over the rounds of a deployed run.

Usage:
    .venv/bin/python -m benchmarks.deployed_memory
    .venv/bin/python -m benchmarks.deployed_memory --rounds 10 --tiny --output /tmp/x.json

Real processes over TLS and with authenticated SuperNodes, see benchmarks/deployment.py: one
coordinator, two hospitals. The model and its adapter are the main job's, a round trains one step:
what a round leaves in a process that never ends does not depend on how long it trains. After every
round each process's resident memory is read; the slope is the least-squares line through the rounds
after the first `--settle`, in which caches fill.

It also tells what an exchange costs beside the site's own work: a round's time without the slowest
site's seconds, of which only a quiet machine tells a true one; and the bytes between SuperNode and
SuperLink, TLS included, beside those of the adapters, from the end of round 1 to that of the last.

About 8 minutes on two cores with nothing else to do. Results: benchmarks/results/
deployed_memory.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.deployment import Deployment, metrics
from benchmarks.machine import describe
from benchmarks.process import memory

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "deployed_memory.json"
SITES = ("Cleveland", "Hungary")
SETTINGS: dict[str, Any] = {
    "method": "subspace-reg",
    "model.source": "embedded:minilm",
    "data.labels": "no heart disease,heart disease",
    "train.threads": 1,
    "train.max-steps": 1,
    "federation.local-only": False,
    "federation.min-sites": len(SITES),
}
TINY = {"model.source": "embedded:tiny-encoder", "model.max-length": 16}
LIMIT = 0.1  # MB a round, of a SuperLink and a SuperNode
_LOOK = 0.1  # seconds


def measure(rounds: int, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run, and return every process's memory after every round, and the rounds' times."""
    with Deployment(folder, SITES, "embedded:heart").up() as running:
        path = running.run({**settings, "federation.rounds": rounds})
        held: dict[str, list[float]] = {name: [] for name in running.processes}
        rows: list[dict[str, Any]] = []
        wire: list[int] = []
        while len(rows) < rounds:
            time.sleep(_LOOK)
            running.check()
            _not_failed(path)
            found = [row for row in metrics(path) if row["phase"] == "federation"]
            if len(found) == len(rows):
                continue
            if len(found) > len(rows) + 1:
                sys.exit("a round passed unseen: the machine is too busy to measure")
            rows = found
            wire.append(sum(meter.up + meter.down for meter in running.meters.values()))
            for name, process in running.processes.items():
                held[name].append(memory(Path(f"/proc/{process.pid}"), "VmRSS")["VmRSS_mb"])
            print(f"round {len(rows)}", {name: values[-1] for name, values in held.items()},
                  file=sys.stderr, flush=True)  # fmt: skip
        work = [_slowest(path, round) for round in range(1, rounds + 1)]
    return {
        "held": held,
        "seconds": [row["seconds"] for row in rows],
        "work": work,
        "wire": wire[-1] - wire[0],
        "adapters": sum(row["bytes_up"] + row["bytes_down"] for row in rows[1:]),
    }


def slopes(held: dict[str, list[float]], settle: int) -> dict[str, Any]:
    """Return of every process first and last memory and the slope, MB a round."""
    found = {}
    for name, values in held.items():
        rounds = np.arange(len(values))
        found[name] = {
            "slope": round(float(np.polyfit(rounds[settle:], values[settle:], 1)[0]), 4),
            "slope_from_the_first_round": round(float(np.polyfit(rounds, values, 1)[0]), 4),
            "first": values[0],
            "settled": values[settle],
            "last": values[-1],
        }
    return found


def _slowest(path: Path, round: int) -> float:
    rows = [row for row in metrics(path) if row["round"] == round and row["site"]]
    return max(float(row["seconds"]) for row in rows)


def _not_failed(path: Path) -> None:
    file = path / "status.json"
    if file.exists() and (status := json.loads(file.read_text()))["state"] == "failed":
        sys.exit(f"the run failed: {status}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--settle", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="a tiny model: whether it works at all")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    load_before = os.getloadavg()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else its processes would stay
    settings = {**SETTINGS, **(TINY if args.tiny else {})}
    with tempfile.TemporaryDirectory(prefix="fedapp-") as name:
        found = measure(args.rounds, settings, Path(name))
    lines = slopes(found["held"], min(args.settle, args.rounds - 2))
    judged = [name for name in lines if name.startswith(("superlink", "supernode"))]
    beside = [whole - work for whole, work in zip(found["seconds"], found["work"], strict=True)]
    document = {
        "benchmark": "resident memory of a deployment's processes after every round, MB",
        "settings": settings,
        "rounds": args.rounds,
        "settle": args.settle,
        "limit": LIMIT,
        "below_limit": all(lines[name]["slope"] < LIMIT for name in judged),
        "processes": lines,
        "round_seconds": median(found["seconds"]),
        "seconds_beside_the_slowest_site": median(beside),
        "wire_bytes": found["wire"],
        "adapter_bytes": found["adapters"],
        "wire_over_adapter": found["wire"] / found["adapters"],
        "held": found["held"],
        **describe(load_before, "flwr", "torch", "grpcio", "numpy"),
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(
        json.dumps(
            {key: document[key] for key in ("below_limit", "processes", "wire_over_adapter")},
            indent=1,
        )
    )
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
