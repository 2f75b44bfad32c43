"""bf16 and int8 updates, with and without error feedback, against fp32 on the same seeds.

Usage:
    python -m benchmarks.codecs run --data heart sentiment --seeds 0 1 2
    python -m benchmarks.codecs print

Every run has the settings of `DATA` and takes one core (`benchmarks.local_grid`). The differences
are paired: the same seed, hence the same records, first model and order of batches. Results go to
benchmarks/results/codecs.json as runs end; a run that is there is not repeated.

The fp32 runs also measure, on their own updates and models, what rounding would cost and where
(`rounding`): of the adapter itself or of its increment on the way up, of the model on the way down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.local_grid import LocalGrid
from fedapp.adapter import Adapter
from fedapp.codec import Codec, pack
from fedapp.config import RunConfig
from fedapp.increments import difference
from fedapp.results import RunFolder, versions
from server_app.app import build_strategy
from server_app.rounds import RoundLoop
from server_app.updates import Update

RESULTS = Path(__file__).resolve().parent / "results" / "codecs.json"
COMMON = {
    "train.threads": 1,
    "train.local-epochs": 1,
    "federation.rounds": 3,
    "federation.local-only": False,
}
DATA: dict[str, dict[str, Any]] = {
    "heart": {"data.source": "embedded:heart", "method": "subspace-reg"},
    # 1,200 test records: half a point is six of them.
    "sentiment": {
        "data.source": "embedded:sentiment",
        "data.max-examples": 500,
        "data.test-fraction": 0.6,
        "method": "fedavg",
    },
}
FORMATS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"federation.codec": "bf16"},
    "int8": {"federation.codec": "int8"},
    "bf16, no feedback": {"federation.codec": "bf16", "federation.error-feedback": False},
    "int8, no feedback": {"federation.codec": "int8", "federation.error-feedback": False},
}
SHORT: tuple[Codec, ...] = ("bf16", "int8")
METRICS = ("accuracy", "auc", "loss")


def run_entry(settings: dict[str, Any]) -> dict[str, Any]:
    """Run one federation and keep its test metrics and bytes."""
    started = time.process_time()
    rounding: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place:
        config = RunConfig.from_flat({**settings, "name": "here", "output-dir": place})
        folder, strategy = RunFolder.create(config), build_strategy(config)
        if config.federation.codec == "fp32":
            aggregate = strategy.aggregate

            def measured(round: int, updates: Sequence[Update]) -> Any:
                rounding.append(_rounding(strategy.adapter, updates))
                return aggregate(round, updates)

            strategy.aggregate = measured  # type: ignore[method-assign]
        summary = RoundLoop(LocalGrid(), strategy, folder, simulated=True).run()
        rows = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    test = {site: phases["received"] for site, phases in summary["sites"].items()}
    return {
        "settings": settings,
        "test": _pooled(test),
        "personal_test": _pooled({s: p["personal"] for s, p in summary["sites"].items()}),
        "validation": {key: rows[-1][key] for key in ("accuracy", "loss")},
        "bytes_up_a_round": rows[-1]["bytes_up"],
        "bytes_down_a_round": rows[-1]["bytes_down"],
        "adapter_digest": summary["adapter_digest"],
        "cpu_seconds": round(time.process_time() - started, 1),
        **({"rounding": rounding} if rounding else {}),
    }


def _pooled(sites: dict[str, dict[str, float]]) -> dict[str, float]:
    """Means over all records; the AUC, which no site shares, over the sites."""
    examples = [row["examples"] for row in sites.values()]
    pooled = {
        name: float(np.average([row[name] for row in sites.values()], weights=examples))
        for name in ("accuracy", "loss")
    }
    areas = [row["auc"] for row in sites.values() if row.get("auc") is not None]
    return {**pooled, "auc": statistics.fmean(areas), "examples": sum(examples)}


def _rounding(sent: Adapter, updates: Sequence[Update]) -> dict[str, float]:
    """Return what rounding would cost this round, relative to the norm of one site's work."""
    work = [difference(update.adapter, sent) for update in updates]
    norm = statistics.fmean(_norm(one) for one in work)
    found = {}
    for codec in SHORT:
        adapters = [_error(update.adapter, codec) for update in updates]
        found[f"up_adapter_{codec}"] = statistics.fmean(adapters) / norm
        found[f"up_increment_{codec}"] = statistics.fmean(_error(w, codec) for w in work) / norm
        found[f"down_model_{codec}"] = _error(sent, codec) / norm
        found[f"down_orthonormality_{codec}"] = _defect(pack(sent, codec).unpack())
    return {**found, "down_orthonormality_fp32": _defect(sent)}


def _norm(adapter: Adapter) -> float:
    return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for _, x in adapter.arrays())))


def _error(adapter: Adapter, codec: Codec) -> float:
    return _norm(difference(pack(adapter, codec).unpack(), adapter))


def _defect(adapter: Adapter) -> float:
    """Largest entry of ``B^T B - I`` over the pairs."""
    return max(
        float(np.abs(p.b_mr.T @ p.b_mr - np.eye(p.rank)).max()) for p in adapter.pairs.values()
    )


def summarise(runs: dict[str, Any]) -> dict[str, Any]:
    """Per data set and format: metrics over the seeds, and their paired differences from fp32."""
    table: dict[str, Any] = {}
    for data in DATA:
        for name in FORMATS:
            seeds = [s for s in range(100) if _key(data, name, s) in runs]
            seeds = [s for s in seeds if _key(data, "fp32", s) in runs]
            if not seeds:
                continue
            mine = [runs[_key(data, name, s)] for s in seeds]
            exact = [runs[_key(data, "fp32", s)] for s in seeds]
            entry: dict[str, Any] = {
                "seeds": len(seeds),
                "test_records": mine[0]["test"]["examples"],
                "bytes_up": mine[0]["bytes_up_a_round"],
                "bytes_down": mine[0]["bytes_down_a_round"],
            }
            for kind in ("test", "personal_test"):
                for metric in METRICS:
                    pairs = [
                        (m[kind][metric], e[kind][metric]) for m, e in zip(mine, exact, strict=True)
                    ]
                    change = [ours - theirs for ours, theirs in pairs]
                    entry[f"{kind}_{metric}"] = {
                        "mean": statistics.fmean(ours for ours, _ in pairs),
                        "std": statistics.pstdev(ours for ours, _ in pairs),
                        "change": statistics.fmean(change),
                        "changes": change,
                    }
            table[f"{data}/{name}"] = entry
        rounds = [
            r for k, run in runs.items() if k.startswith(data) for r in run.get("rounding", ())
        ]
        if rounds:
            # B is orthonormal from the first merge on, with a method that makes it so.
            basis = [r for r in rounds if r["down_orthonormality_fp32"] < 0.5]
            table[f"{data}/rounding"] = {
                key: statistics.fmean(row[key] for row in found)
                for key in rounds[0]
                if (found := basis if "orthonormality" in key else rounds)
            }
    return table


def _key(data: str, name: str, seed: int) -> str:
    return f"{data}/{name}/seed{seed}"


def known() -> dict[str, Any]:
    """Return the runs that are there already."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}
    return found


def remember(runs: dict[str, Any]) -> None:
    """Write the runs and what they say together."""
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": sys.version}
    document = {
        "machine": machine,
        "versions": versions(),
        "summary": summarise(runs),
        "runs": runs,
    }
    RESULTS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def show(runs: dict[str, Any]) -> None:
    """Print the table."""
    for name, entry in summarise(runs).items():
        if name.endswith("rounding"):
            print(name, {key: float(f"{value:.2g}") for key, value in entry.items()})
            continue
        parts = [
            f"{metric} {entry[f'test_{metric}']['mean']:.4f} "
            f"({entry[f'test_{metric}']['change']:+.4f})"
            for metric in METRICS
        ]
        print(f"{name:<30} up {entry['bytes_up'] / 1e3:7.1f} kB  {'  '.join(parts)}")


def main() -> None:
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="run", choices=["run", "print"])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    runs = known()
    for seed in options.seeds if options.what == "run" else ():
        for data in options.data:
            for name in options.formats:
                if _key(data, name, seed) not in runs:
                    settings = {**COMMON, **DATA[data], **FORMATS[name], "seed": seed}
                    runs[_key(data, name, seed)] = run_entry(settings)
                    remember(runs)
    show(runs)


if __name__ == "__main__":
    main()
