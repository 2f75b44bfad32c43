"""Personalised instruction tuning: every method on grids of one size, by ROUGE-L at each client.

Usage:
    python -m benchmarks.personalised plan                 what is left to run, and for how long
    python -m benchmarks.personalised run                  the tiny decoder, three seeds
    python -m benchmarks.personalised run --models smollm2 --seeds 0 1 --data medquad_short.jsonl.gz
    python -m benchmarks.personalised run --only pflalign-literal --settings tasks
    python -m benchmarks.personalised print

Each of `ROWS` is tried at as many points, learning rates times its own main knob where it has one,
with seed 0 and without generation; the point with the lowest validation loss of the personal models
after the last round serves all seeds, whose runs generate, and measure the gradients' signal to
noise ratio. No test figure enters a choice. Local-only is trained in the runs of ``fedavg`` and
chosen by its own validation loss. With SmolLM2 ``fedavg`` and ``pflalign`` alone are tried, at the
three rates of `FEW`; the others take over the rate of the one whose steps are like theirs, and
the knob that the tiny decoder has chosen on ``tasks``.

Settings: ``tasks``, clients that have no task in common, the one of high heterogeneity;
``hospitals``, four clients with the same questions; with ``--data``, ``four`` clients of four
tasks, two of them institutions of MedQuAD, ``tasks+medquad`` and ``institutions``. Results:
benchmarks/results/personalised.json, an entry a run, written as runs end; a run that is there is
not repeated. Several processes, a core each, share the work out among themselves.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import instruction_clients as clients
from benchmarks.personalised_rows import (
    ALL_ROWS,
    FEW,
    LOCAL,
    MODELS,
    PROBE,
    ROWS,
    SECONDS,
    SETTINGS,
    Settings,
    sources,
)
from benchmarks.shared_work import work
from benchmarks.sweep import Results, Run, Runs, Unmeasured, spread
from fedapp.errors import MergeRefused, MissingReplies

TRACED = (
    "loss", "rouge_l", "received_loss", "received_rouge_l", "gsnr", "gsnr_median",
    "client_movement", "drift_diversity", "movement_cosine",
    "factor_mean", "gate_mean", "delta_norm", "delta_withdrawn",
)  # fmt: skip
OVER_ROUNDS = TRACED[4:]


@dataclass(frozen=True)
class Job:
    """A run to do; without settings while its point is not chosen yet."""

    model: str
    setting: str
    row: str
    settings: Settings | None = None
    seed: int | None = None
    """None: a run of the grid."""

    def seconds(self, runs: Runs) -> float:
        """Return what it may take of a core: the mean of the runs that were like it."""
        start = f"{self.model}/{self.setting}/"
        like = [
            run["cpu_seconds"] / ALL_ROWS[name.split("/")[2]].passes
            for name, run in runs.items()
            if name.startswith(start)
            and "cpu_seconds" in run
            and name.endswith("/tune") == (self.seed is None)
        ]
        guess = SECONDS[self.model].get(self.setting, (math.nan, math.nan))[self.seed is not None]
        return (statistics.fmean(like) if like else guess) * ALL_ROWS[self.row].passes


def key(model: str, setting: str, row: str, point: str, run: str) -> str:
    """Return the name of a run in the results; ``run`` is "tune" or the seed."""
    return f"{model}/{setting}/{row}/{point}/{run}"


def grid(runs: Runs, model: str, setting: str, row: str) -> dict[str, Settings] | None:
    """Return the points of a row; None while they wait for another choice."""
    of_row = ALL_ROWS[row]
    if model == "tiny":
        return dict(of_row.points())
    rates, value = FEW.get(row), None
    if rates is None:
        point = chosen(runs, model, setting, of_row.alike)
        if point is None:
            return None
        rates = (
            dict(ALL_ROWS[of_row.alike].points(FEW[of_row.alike]))[point]["train.learning-rate"],
        )
    if of_row.knob:
        point = chosen(runs, "tiny", "tasks", row)
        if point is None:
            return None
        value = dict(of_row.points())[point][of_row.knob]
    return dict(of_row.points(rates, value))


def chosen(runs: Runs, model: str, setting: str, row: str) -> str | None:
    """Return the point of the lowest validation loss; None before all have run."""
    source = "fedavg" if row == LOCAL else row
    points = list(grid(runs, model, setting, source) or ())
    if len(points) == 1:
        return points[0]
    found = {p: runs.get(key(model, setting, source, p, "tune")) for p in points}
    losses = {p: _loss(run, row) for p, run in found.items() if run is not None}
    complete = points and len(losses) == len(points)
    return min(losses, key=losses.__getitem__) if complete else None


def _loss(run: Run, row: str) -> float:
    if "failed" in run:
        return math.inf
    if row == LOCAL:
        return float(run["local_only_validation"]["loss"])
    return float(run["rounds"][-1]["loss"])


def jobs(
    runs: Runs, model: str, setting: str, source: str, rows: list[str], seeds: list[int]
) -> Iterator[tuple[str, Job]]:
    """Yield the name and the job of every run that is not there, in their order."""
    for row in rows:
        points = grid(runs, model, setting, row)
        common = {
            **MODELS[model], "data.source": source, "federation.local-only": row == "fedavg"
        }  # fmt: skip
        tuned = model == "tiny" or row in FEW
        for point in points or () if tuned else ():
            flat = {**common, **points[point], "train.generate-tokens": 0}
            name = key(model, setting, row, point, "tune")
            if name not in runs:
                yield name, Job(model, setting, row, flat)
        wanted = [chosen(runs, model, setting, row)]
        if row == "fedavg":  # local-only's point, most often another one
            wanted.append(chosen(runs, model, setting, LOCAL))
        for seed in seeds:
            for n, point in enumerate(dict.fromkeys(wanted) if all(wanted) else wanted):
                name = key(model, setting, row, point or f"choice {n}", f"seed{seed}")
                flat = (
                    {**common, **points[point], "seed": seed, "federation.gsnr": PROBE[model]}
                    if points and point
                    else None
                )
                if name not in runs:
                    yield name, Job(model, setting, row, flat, seed)


def do(results: Results, name: str, job: Job) -> None:
    """Do a run; one that diverges is kept as that."""
    try:
        results.run(name, job.settings or {}, TRACED)
    except (MissingReplies, MergeRefused, Unmeasured) as error:  # at too high a rate
        results.save(name, {"failed": str(error)})


def table(runs: Runs) -> dict[str, Any]:
    """Per model, setting and row, at its chosen point: ROUGE-L of the clients, and diagnostics."""
    result: dict[str, Any] = {}
    for place in sorted({"/".join(name.split("/")[:2]) for name in runs}):
        model, setting = place.split("/")
        for row in (LOCAL, *ALL_ROWS):
            point = chosen(runs, model, setting, row)
            start = key(model, setting, "fedavg" if row == LOCAL else row, str(point), "seed")
            ended = [run for name, run in sorted(runs.items()) if name.startswith(start)]
            mine = [run for run in ended if "failed" not in run]
            if point is None or not mine:
                continue
            phase = LOCAL if row == LOCAL else "personal"
            entry = {
                "point": point,
                "macro": _macro(mine, phase),
                "clients": _clients(mine, phase),
                "failed_seeds": len(ended) - len(mine),
                "rate_at_edge": _at_edge(runs, model, setting, row, point),
            }
            if row != LOCAL:
                entry |= {
                    "macro_received": _macro(mine, "received"),
                    "over_rounds": {n: c for n in OVER_ROUNDS if (c := _curve(mine, n))},
                    "passes_per_step": ALL_ROWS[row].passes,
                }
            result.setdefault(model, {}).setdefault(setting, {})[row] = entry
    return result


def _at_edge(runs: Runs, model: str, setting: str, row: str, point: str) -> bool:
    """Whether the chosen rate is the lowest or the highest that was tried."""
    points = grid(runs, model, setting, "fedavg" if row == LOCAL else row) or {}
    rates = {name: float(flat["train.learning-rate"]) for name, flat in points.items()}
    return len(points) > 1 and rates[point] in (min(rates.values()), max(rates.values()))


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


def tried(runs: Runs) -> dict[str, dict[str, list[str]]]:
    """Per model and setting: the points of the rows, as far as they are known."""
    places = sorted({tuple(name.split("/")[:2]) for name in runs})
    return {
        f"{model}/{setting}": {
            row: list(points) for row in ALL_ROWS if (points := grid(runs, model, setting, row))
        }
        for model, setting in places
    }


RESULTS = Results(
    Path(__file__).resolve().parent / "results" / "personalised.json",
    lambda runs: {"grids": tried(runs), "table": table(runs)},
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
                point = row["point"] + (", edge of the grid" if row["rate_at_edge"] else "")
                print("  " + "  ".join([f"{name:15s} {told}  ({point})", *cells]))


def plan(runs: Runs, wanted: Iterator[tuple[str, Job]]) -> None:
    """Print the number of runs left and what they may take of one core."""
    left: dict[str, list[float]] = {}
    for _, job in wanted:
        left.setdefault(f"{job.model}, {job.setting}", []).append(job.seconds(runs))
    for place, seconds in left.items():
        print(f"{place}: {len(seconds)} runs left, about {sum(seconds) / 60:.0f} minutes of a core")
    if not left:
        print("nothing is left to run")


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", nargs="?", default="print", choices=("run", "plan", "print"))
    parser.add_argument("--models", nargs="+", default=["tiny"], choices=list(MODELS))
    parser.add_argument("--settings", nargs="+", help="by default those of `SETTINGS`")
    parser.add_argument("--only", nargs="+", default=list(ROWS), choices=list(ALL_ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", type=Path, help="medquad_short.jsonl.gz")
    options = parser.parse_args()
    if options.stage == "print":
        show(RESULTS.load())
        return
    data = options.data.resolve() if options.data else None
    os.chdir(clients.folder())  # so that no path of this machine is in the results
    found = sources(data)
    places = [(m, s) for m in options.models for s in options.settings or SETTINGS[m]]
    if unknown := {setting for _, setting in places} - set(found):
        parser.error(f"{', '.join(sorted(unknown))}: {', '.join(found)} there are; see --data")

    def wanted(runs: Runs) -> Iterator[tuple[str, Job]]:
        for model, setting in places:
            yield from jobs(runs, model, setting, found[setting], options.only, options.seeds)

    if options.stage == "plan":
        runs = RESULTS.load()
        plan(runs, wanted(runs))
        return

    def ready() -> dict[str, Job]:
        return {name: job for name, job in wanted(RESULTS.load()) if job.settings}

    work(
        clients.folder() / "claims",
        lambda: list(ready()),
        lambda name: do(RESULTS, name, ready()[name]),
    )
    show(RESULTS.load())


if __name__ == "__main__":
    main()
