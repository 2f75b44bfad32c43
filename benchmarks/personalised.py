"""Personalised instruction tuning: every method on grids of one size, by ROUGE-L at each client.

Usage:
    python -m benchmarks.personalised run --models tiny --seeds 0 1 2
    python -m benchmarks.personalised run --models smollm2 --seeds 0 1 --data medquad_short.jsonl.gz
    python -m benchmarks.personalised run --only pflalign --settings tasks
    python -m benchmarks.personalised print

Each of `ROWS` is tried at `GRID` points, learning rates times its own main knob where it has one,
with seed 0 and without generation; the point with the lowest validation loss of the personal models
after the last round serves all seeds, whose runs generate, and measure the gradients' signal to
noise ratio. No test figure enters a choice. Local-only is trained in the runs of ``fedavg`` and
chosen by its own validation loss.

Settings: ``tasks``, clients that have no task in common (two institutions of MedQuAD more with
``--data``); ``hospitals``, four clients with the same questions; ``institutions`` of MedQuAD, with
``--data`` alone. Results: benchmarks/results/personalised.json, an entry a run, written as runs
end; a run that is there is not repeated, and several processes may run at once, one core each.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import instruction_clients as clients
from benchmarks.sweep import Results, Run, Runs, spread
from fedapp.errors import MergeRefused, MissingReplies

LOCAL = "local-only"
SIX = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
THREE = (2e-3, 8e-3, 3.2e-2)
RATE_SCALE = {"tiny": 1.0, "smollm2": 0.25}
GRID = 6
Settings = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A method, and the `GRID` points at which it is tried."""

    settings: Settings
    rates: tuple[float, ...] = SIX
    knob: str = ""
    values: tuple[float, ...] = ()
    passes: int = 1
    """Forward and backward passes for each step of a plain method."""

    def points(self, model: str) -> Iterator[tuple[str, Settings]]:
        """Yield the name and the settings of every point."""
        for rate in (RATE_SCALE[model] * rate for rate in self.rates):
            at_rate = {**self.settings, "train.learning-rate": rate}
            for value in self.values:
                yield f"lr {rate:g}, {self.knob} {value:g}", {**at_rate, self.knob: value}
            if not self.values:
                yield f"lr {rate:g}", at_rate


def _algorithm(name: str, knob: str = "", values: tuple[float, ...] = (), passes: int = 1) -> Row:
    settings = {"method": "fedavg", "federation.algorithm": name}
    return Row(settings, THREE if values else SIX, knob, values, passes)


ROWS = {
    "fedavg": _algorithm("fedavg"),
    "fedprox": _algorithm("fedprox", "fedprox.mu", (0.01, 0.1)),
    "scaffold": _algorithm("scaffold"),
    "fedavgm": _algorithm("fedavgm", "fedavgm.momentum", (0.5, 0.9)),
    "fedyogi": _algorithm("fedyogi", "fedyogi.server-lr", (1e-3, 1e-2)),
    "fedsam": _algorithm("fedsam", "fedsam.rho", (0.01, 0.1), passes=2),
    "fedsa-lora": Row({"method": "fedsa-lora"}),
    "ditto": Row({"method": "ditto"}, THREE, "ditto.lambda", (0.1, 1.0), passes=2),
    # Plain steps times factors far below 1: rates of another order, see docs/methods.md.
    "pflalign": Row({"method": "pflalign"}, (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    "pflalign-adamw": Row({"method": "pflalign", "pflalign.base": "adamw"}),
}

MODELS: dict[str, Settings] = {
    "tiny": {
        "model.source": "embedded:tiny-decoder",
        "model.max-length": 160,
        "lora.targets": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        "federation.rounds": 10,
        "train.local-epochs": 2,
        "train.generate-tokens": 24,
    },
    "smollm2": {
        "model.source": "embedded:smollm2",
        "model.max-length": 160,
        "lora.targets": "q_proj,v_proj",
        "federation.rounds": 3,
        "train.local-epochs": 1,
        "train.max-steps": 5,  # a step of 8 records takes some 5 s of a CPU core
        "train.generate-tokens": 32,
    },
}
COMMON: Settings = {
    "model.task": "causal-lm",
    "data.max-examples": 120,
    "data.test-fraction": 0.25,
    "data.validation-fraction": 0.2,
    "train.batch-size": 8,
    "train.eval-batch-size": 32,
}
PROBE = 64
TRACED = (
    "loss", "rouge_l", "received_loss", "received_rouge_l", "gsnr", "gsnr_median",
    "client_movement", "drift_diversity", "movement_cosine",
)  # fmt: skip
OVER_ROUNDS = TRACED[4:]


def sources(data: Path | None) -> dict[str, str]:
    """Write the clients' files; a name of a setting to the path of its records."""
    found = {"hospitals": clients.written("hospitals", clients.hospitals)}
    if data is None:
        return {"tasks": clients.written("tasks", partial(clients.tasks, None)), **found}
    institutions = partial(clients.medquad, data, clients.INSTITUTIONS)
    return {
        "tasks+medquad": clients.written("tasks+medquad", partial(clients.tasks, data)),
        **found,
        "institutions": clients.written("institutions", institutions),
    }


def key(model: str, setting: str, row: str, point: str, run: str) -> str:
    """Return the name of a run in the results; ``run`` is "tune" or the seed."""
    return f"{model}/{setting}/{row}/{point}/{run}"


def tune(results: Results, model: str, setting: str, source: str, row: str) -> None:
    """Run a row at every point of its grid."""
    for point, at_point in ROWS[row].points(model):
        flat = {
            **COMMON, **MODELS[model], **at_point,
            "data.source": source,
            "train.generate-tokens": 0,
            "federation.local-only": row == "fedavg",
        }  # fmt: skip
        name = key(model, setting, row, point, "tune")
        try:
            results.run(name, flat, TRACED)
        except (MissingReplies, MergeRefused) as error:  # at too high a rate training diverges
            results.save(name, {"failed": error.message})


def chosen(runs: Runs, model: str, setting: str, row: str) -> str | None:
    """Return the point of the lowest validation loss; None before all have run."""
    source = "fedavg" if row == LOCAL else row
    points = [point for point, _ in ROWS[source].points(model)]
    tried = {p: runs.get(key(model, setting, source, p, "tune")) for p in points}
    losses = {p: _loss(run, row) for p, run in tried.items() if run is not None}
    return min(losses, key=losses.__getitem__) if len(losses) == GRID else None


def _loss(run: Run, row: str) -> float:
    if "failed" in run:
        return math.inf
    if row == LOCAL:
        return float(run["local_only_validation"]["loss"])
    return float(run["rounds"][-1]["loss"])


def final(results: Results, model: str, setting: str, source: str, row: str, seed: int) -> None:
    """Run a seed at the row's point; fedavg at that of local-only as well."""
    runs = results.load()
    wanted = {chosen(runs, model, setting, row)}
    if row == "fedavg":
        wanted.add(chosen(runs, model, setting, LOCAL))
    points = dict(ROWS[row].points(model))
    for point in sorted(p for p in wanted if p is not None):
        flat = {
            **COMMON, **MODELS[model], **points[point],
            "data.source": source,
            "seed": seed,
            "federation.local-only": row == "fedavg",
            "federation.gsnr": PROBE,
        }  # fmt: skip
        results.run(key(model, setting, row, point, f"seed{seed}"), flat, TRACED)


def table(runs: Runs) -> dict[str, Any]:
    """Per model, setting and row, at its chosen point: ROUGE-L of the clients, and diagnostics."""
    result: dict[str, Any] = {}
    for place in sorted({"/".join(name.split("/")[:2]) for name in runs}):
        model, setting = place.split("/")
        for row in (LOCAL, *ROWS):
            point = chosen(runs, model, setting, row)
            start = key(model, setting, "fedavg" if row == LOCAL else row, str(point), "seed")
            mine = [run for name, run in sorted(runs.items()) if name.startswith(start)]
            if point is None or not mine:
                continue
            phase = LOCAL if row == LOCAL else "personal"
            entry = {"point": point, "macro": _macro(mine, phase), "clients": _clients(mine, phase)}
            if row != LOCAL:
                entry |= {
                    "macro_received": _macro(mine, "received"),
                    "over_rounds": {n: c for n in OVER_ROUNDS if (c := _curve(mine, n))},
                    "passes_per_step": ROWS[row].passes,
                }
            result.setdefault(model, {}).setdefault(setting, {})[row] = entry
    return result


def _macro(runs: list[Run], phase: str) -> dict[str, Any]:
    means = [run["test"][phase]["mean"] for run in runs]
    return {n: spread(mean[n] for mean in means) for n in ("rouge_l", "exact_match", "loss")}


def _clients(runs: list[Run], phase: str) -> dict[str, Any]:
    sites = runs[0]["test"][phase]["sites"]
    return {s: spread(run["test"][phase]["sites"][s]["rouge_l"] for run in runs) for s in sites}


def _curve(runs: list[Run], name: str) -> list[float]:
    """Return the mean over the runs, round by round."""
    curves = [[row[name] for row in run["rounds"] if name in row] for run in runs]
    return [statistics.fmean(column) for column in zip(*curves, strict=False)]


RESULTS = Results(
    Path(__file__).resolve().parent / "results" / "personalised.json",
    lambda runs: {
        "grids": {
            model: {name: [point for point, _ in row.points(model)] for name, row in ROWS.items()}
            for model in MODELS
        },
        "table": table(runs),
    },
)


def show(runs: Runs) -> None:
    """Print the tables, the best macro average first."""
    for model, settings in table(runs).items():
        for setting, rows in settings.items():
            print(f"\n{model}, {setting}: personalised ROUGE-L")
            ranked = sorted(rows.items(), key=lambda item: -item[1]["macro"]["rouge_l"]["mean"])
            for name, row in ranked:
                macro = row["macro"]["rouge_l"]
                cells = [f"{site} {of['mean']:.3f}" for site, of in row["clients"].items()]
                if gsnr := row.get("over_rounds", {}).get("gsnr"):
                    cells.append(f"GSNR {gsnr[0]:.4f} -> {gsnr[-1]:.4f}")
                told = f"{macro['mean']:.4f}±{macro['std']:.4f} n={macro['n']}"
                print("  " + "  ".join([f"{name:15s} {told}  ({row['point']})", *cells]))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", nargs="?", default="print", choices=("run", "tune", "print"))
    parser.add_argument("--models", nargs="+", default=["tiny"], choices=list(MODELS))
    parser.add_argument("--settings", nargs="+", help="by default all that the data allow")
    parser.add_argument("--only", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", type=Path, help="medquad_short.jsonl.gz")
    options = parser.parse_args()
    if options.stage != "print":
        data = options.data.resolve() if options.data else None
        os.chdir(clients.folder())  # so that no path of this machine is in the results
        for setting, source in sources(data).items():
            if options.settings and setting not in options.settings:
                continue
            for model in options.models:
                for row in options.only:
                    tune(RESULTS, model, setting, source, row)
                    for seed in options.seeds if options.stage == "run" else ():
                        final(RESULTS, model, setting, source, row, seed)
    show(RESULTS.load())


if __name__ == "__main__":
    main()
