"""Where the time and the memory of a simulation go, with 4, 16 and 64 sites on this machine.

Usage:
    .venv/bin/python -m benchmarks.simulation
    .venv/bin/python -m benchmarks.simulation --cases 16 memory --method subspace-reg

Every case is one real `fedapp run`: 4 sites are the hospitals of embedded:heart, 16 and 64 are
embedded:sentiment dealt evenly (`make sentiment` fetches it; each of 64 keeps 100 records), and
`memory` is 16 sites with a tiny model for 24 rounds. Results go to
benchmarks/results/simulation.json, one entry a case. Run it on a machine that does nothing else:
`workers.processor` tells whether it did.

What is measured, between the checkpoint before round 1 and the checkpoint after the last round:
without daemon, imports, handshake and model loading, and without the final test, but with
everything between the rounds (merging, diagnostics, checkpoints).

``training_at_a_site``
    Share of this wall time in which at least one site trains. A site trains from the begin of its
    training loop (optimiser, batches, forward and backward passes) to its last step. Evaluation is
    not in it, nor is the time in which all workers wait or evaluate.
``workers.training``
    The stricter figure: training seconds summed over the sites / (workers x wall time), that is,
    the mean share of a worker's time. One idle worker of two counts as half.
``workers.evaluation``
    The same for evaluating the received and the personal model, which is part of every exchange.
``workers.other``
    The rest of a site's own time: loading the received adapter, packing the update.
``workers.idle``
    What is left, in four parts: ``idle_begin`` until a worker's first site of the round begins,
    ``idle_between`` two of its sites, ``idle_others`` while it waits for the last site of another
    worker, and ``idle_server`` from the last site's end to the next round (collecting, merging,
    diagnostics, checkpoint). When a site began is estimated: its evaluations before and after the
    training are told as one time, which is divided by the number of splits.
``workers.idle_indivisible``
    The part of ``idle`` in which a worker would have nothing to do even if every hand-over and
    merge took no time, because one worker trains a site (sites dealt largest first).
``workers.processor``
    Processor seconds of the workers / (workers x wall time). Well below training + evaluation, it
    says that other programs competed for the cores, and that the figures are worth little.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.step_time import processor
from fedapp.cli import daemon
from fedapp.cli.home import Home

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "simulation.json"
SENTIMENT = {"data.source": "embedded:sentiment", "data.partition": "iid"}
CASES: dict[str, dict[str, Any]] = {
    "4": {},
    "16": SENTIMENT | {"data.sites": 16},
    "64": SENTIMENT | {"data.sites": 64, "data.max-examples": 100},
    "memory": SENTIMENT
    | {
        "data.sites": 16,
        "federation.rounds": 24,
        "model.source": "embedded:tiny-encoder",
        "train.max-steps": 4,
        "data.max-examples": 100,
    },
}
COMMON = {
    "federation.local-only": False,
    "federation.keep-checkpoints": 1000,  # their times are the clock
    "train.device": "cpu",
}
MEGABYTE = 2**20
Span = tuple[float, float]


def main() -> None:
    """Measure the sizes asked for and write them beside those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="fedavg", help="the one with the shortest steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], help="more settings, key=value")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    document = json.loads(args.output.read_text()) if args.output.exists() else {}
    common = COMMON | {
        "method": args.method, "federation.rounds": args.rounds, "seed": args.seed,
    }  # fmt: skip
    for case in args.cases:
        settings = common | CASES[case] | dict(text.split("=", 1) for text in args.set)
        document[case] = measure(settings)
        print(json.dumps({"case": case, **document[case]["result"]}, indent=1))
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {args.output}")


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the federation once and say where its time went."""
    with tempfile.TemporaryDirectory() as folder:
        fedapp = str(Path(sys.executable).with_name("fedapp"))
        words = [f"{key}={str(value).lower() if value is False else value}"
                 for key, value in settings.items()]  # fmt: skip
        command = [fedapp, "run", str(ROOT), "--name", "bench", "--output-dir", folder]
        command += ["-c", " ".join(words)]
        load, started = os.getloadavg(), time.time()
        with Watch() as watch:
            subprocess.run(command, check=True, stdout=sys.stderr)
        run = Run(Path(folder, "bench"), watch)
        return {
            "result": {"start_up_seconds": run.times[0] - started, **run.summary()},
            "settings": settings,
            "command": ["fedapp", "run", "-c", " ".join(words)],
            "versions": run.versions,
            "machine": {
                "processor": processor(),
                "cores": os.cpu_count(),
                "platform": platform.platform(),
                "load_average_before": load,
            },
        }


@dataclass(frozen=True)
class Sample:
    """One look at a process: Unix time, resident bytes, processor seconds so far."""

    time: float
    resident: int
    processor: float


@dataclass
class Watch:
    """Looks at the workers and the coordinator's process twice a second while the run goes on."""

    samples: dict[tuple[str, int], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def __enter__(self) -> Watch:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.5):
            running = daemon.read(Home.of(ROOT))
            for process in running.executing() if running is not None else []:
                command = process.command()
                kind = "worker" if "ClientAppActor" in command else "coordinator"
                if kind == "worker" or "flwr-simulation" in command:
                    sample = look(process.pid)
                    if sample is not None:
                        self.samples[kind, process.pid].append(sample)


def look(pid: int) -> Sample | None:
    """Return the sample of a process, None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    return Sample(time.time(), pages * page, ticks / tick)


class Run:
    """What a run folder and the samples say of one run."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        # The time of a checkpoint is the end of its round; that of round 0 is the begin of round 1.
        checkpoints = sorted(folder.glob("checkpoint/round-*"))
        self.times = [path.stat().st_mtime for path in checkpoints]
        read = (folder / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in read]
        self.rounds = [row for row in rows if row["phase"] == "federation"]
        personal = [row for row in rows if row["phase"] == "personal"]
        self.sites = [row for row in personal if row["split"] == "validation"]
        self.splits = Counter((row["site"], row["round"]) for row in personal)
        lines = (folder / "progress.jsonl").read_text().splitlines()
        events = [event for event in map(json.loads, lines) if event["action"] == "train"]
        self.last = {(e["site"], e["round"]): e for e in events if e["step"] == e["steps"]}
        self.loads = {e["process"]: e["base_loads"] for e in events}
        self.versions = json.loads((folder / "config.json").read_text())["versions"]
        self.watch = watch

    def summary(self) -> dict[str, Any]:
        """Return the figures."""
        wall = self.times[-1] - self.times[0]
        workers = len(self.loads)
        parts = {
            "training": sum(row["training_seconds"] for row in self.sites),
            "evaluation": sum(row["evaluation_seconds"] for row in self.sites),
        }
        parts["other"] = sum(row["seconds"] for row in self.sites) - sum(parts.values())
        shares = {name: seconds / (workers * wall) for name, seconds in parts.items()}
        shares["idle"] = 1 - sum(shares.values())
        shares |= {name: part / (workers * wall) for name, part in self._idle().items()}
        shares["idle_indivisible"] = sum(map(self._waiting, self.rounds)) / wall
        shares["processor"] = self._processor() / (workers * wall)
        return {
            "worker_processes": workers,
            "wall_seconds": wall,
            "round_seconds": [b - a for a, b in itertools.pairwise(self.times)],
            "between_rounds_seconds": wall - sum(row["seconds"] for row in self.rounds),
            "training_at_a_site": covered(self._spans()) / wall,
            "workers": shares,
            "base_loads": sorted(self.loads.values()),
            **self._memory("worker"),
            **self._memory("coordinator"),
        }

    def _spans(self) -> list[Span]:
        """The time in which each site trained, from its last step and its own clock."""
        return [
            (end - row["training_seconds"], end)
            for row in self.sites
            for end in [self.last[row["site"], row["round"]]["time"]]
        ]

    def _idle(self) -> dict[str, float]:
        """Seconds in which the workers had no site, by what they waited for."""
        parts = dict.fromkeys(("idle_begin", "idle_between", "idle_others", "idle_server"), 0.0)
        for number, (begin, end) in enumerate(itertools.pairwise(self.times), 1):
            busy = self._busy(number)
            last = max(spans[-1][1] for spans in busy)
            for spans in busy:
                parts["idle_begin"] += spans[0][0] - begin
                for before, after in itertools.pairwise(spans):
                    parts["idle_between"] += after[0] - before[1]
                parts["idle_others"] += last - spans[-1][1]
                parts["idle_server"] += end - last
        return parts

    def _busy(self, number: int) -> list[list[Span]]:
        """When each worker that had a site in a round had one, in order."""
        found: dict[int, list[Span]] = {}
        for row in self.sites:
            if row["round"] == number:
                event = self.last[row["site"], number]
                before = row["evaluation_seconds"] / (1 + self.splits[row["site"], number])
                begin = event["time"] - row["training_seconds"] - before
                found.setdefault(event["process"], []).append((begin, begin + row["seconds"]))
        return [sorted(spans) for spans in found.values()]

    def _waiting(self, round: dict[str, Any]) -> float:
        """Mean seconds a worker waits for the others if sites are dealt largest first."""
        busy = [0.0] * len(self.loads)
        own = [row["seconds"] for row in self.sites if row["round"] == round["round"]]
        for seconds in sorted(own, reverse=True):
            busy[busy.index(min(busy))] += seconds
        return max(busy) - sum(busy) / len(busy)

    def _processor(self) -> float:
        """Processor seconds of the workers within the measured time."""
        total = 0.0
        for (kind, _), samples in self.watch.samples.items():
            own = [s.processor for s in samples if self.times[0] <= s.time <= self.times[-1]]
            if kind == "worker" and own:
                total += own[-1] - own[0]
        return total

    def _memory(self, kind: str) -> dict[str, Any]:
        """Largest resident memory in every round, one list a process, and whether it grows.

        Growth is the median of the last third of the rounds minus that of the middle third. A
        single round tells little: a worker's memory goes up and down with the batches it meets.
        """
        table = []
        for (found, _), samples in self.watch.samples.items():
            rounds = itertools.pairwise(self.times)
            peaks = [
                max((s.resident for s in samples if begin <= s.time <= end), default=0) / MEGABYTE
                for begin, end in rounds
            ]
            if found == kind and any(peaks):
                table.append([round(peak, 1) for peak in peaks])
        third = len(self.rounds) // 3
        growth = [
            round(median(peaks[-third:]) - median(peaks[-2 * third : -third]), 1)
            for peaks in table
            if third > 1
        ]
        result: dict[str, Any] = {f"{kind}_megabytes": table}
        return result | ({f"{kind}_growth_megabytes": growth} if growth else {})


def covered(spans: list[Span]) -> float:
    """Length of the union of the spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


if __name__ == "__main__":
    main()
