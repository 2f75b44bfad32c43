"""Attacks against rules: how honest sites fare when one, half, or most of eight sites are faulty.

Usage:
    python -m benchmarks.byzantine plan
    python -m benchmarks.byzantine run --places digits texts --seeds 0 1 2 --hours 3 --part 0/2
    python -m benchmarks.byzantine run --places digits --data writer_digits.npz --hours 1.5
    python -m benchmarks.byzantine print

`PLACES`: ``digits``, eight sites of handwritten digits on a network of four convolutions, all of it
trained (with ``--data`` the writers of a file, as in presets/writers.toml, dealt whole to eight
sites); ``texts``, the four hospitals of ``embedded:heart`` and the four sources of
``embedded:sentiment`` in one federation of eight: LoRA on MiniLM, labels 0 and 1, two tasks that
have nothing in common.

Which sites are faulty is drawn from the seed, the fewer among the more. A rule that presumes a
number of faulty sites is told the true one, as far as it has a value for it; the root of FLTrust is
honest. The score is the accuracy on each honest site's own test records: of what came of the last
exchange (of the shared model where there is a coordinator; of the site's own with Ditto).

``local-only`` knows no attack and no other site, the oracle no faulty one: both run once a seed
(and number of faulty sites). Order: places, seeds, faulty sites, attacks, rules, so that whole
tables stand whenever the grid is stopped. Results: benchmarks/results/byzantine.json, an entry a
run; a run that is there is not repeated, and several processes (``--part``) share the work.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.byzantine_table import claims, rows, show
from benchmarks.sweep import Results, Runs
from fedapp.config import RunConfig
from fedapp.seeds import derive_seed

Settings = dict[str, Any]
SITES = 8
FAULTY = (1, 4, 6, 7)

ATTACKS: dict[str, Settings] = {
    "sign-flip": {"faults.attack": "sign-flip"},
    "noise": {"faults.attack": "additive-noise", "faults.std": 0.3},
    "random": {"faults.attack": "random"},
    "head-flip": {"faults.attack": "head-flip"},
    "alie": {"faults.attack": "alie", "faults.z": 1.5},
    "ipm": {"faults.attack": "ipm", "faults.epsilon": 0.5},
    "mixed": {"faults.attack": "sign-flip,random,additive-noise,head-flip", "faults.std": 0.3},
}

RULES: dict[str, Settings] = {
    "lightyear": {"method": "lightyear"},
    "lightyear-paper": {"method": "lightyear", "lightyear.preset": "paper"},
    "average": {"method": "gossip-average"},
    "balance": {"method": "balance"},
    "clipping": {"method": "clipping"},
    "ubar": {"method": "ubar"},
    "fedavg": {"method": "fedavg"},
    "krum": {"method": "krum"},
    "multi-krum": {"method": "multi-krum"},
    "trimmed-mean": {"method": "trimmed-mean"},
    "median": {"method": "median"},
    "norm-clip": {"method": "norm-clip"},
    "fltrust": {"method": "fltrust"},
    "ditto": {"method": "ditto"},
    "local-only": {"method": "alone"},
    "oracle": {"method": "oracle"},
}
ONCE = ("local-only", "oracle")
"""Rules that no attack changes."""

TRAINING: Settings = {
    "method": "fedavg",
    "train.threads": 1,
    "federation.local-only": False,
    "data.one-class": "allow",
}
PLACES: dict[str, Settings] = {
    "digits": {
        "model.task": "image-classification",
        "model.source": "embedded:conv4",
        "model.trainable": "all",
        "data.source": "embedded:digits",
        "data.partition": "dirichlet",
        "data.sites": SITES,
        "data.dirichlet-alpha": 0.5,
        "federation.rounds": 8,
        "train.local-epochs": 2,
        "train.learning-rate": 2e-3,
        "train.batch-size": 16,
        "p2p.records": 32,
    },
    "texts": {
        "model.max-length": 48,
        "data.labels": "0,1",
        "data.max-examples": 60,
        "data.test-fraction": 0.4,
        "federation.rounds": 5,
        "train.local-epochs": 1,
        "train.batch-size": 8,
        "train.learning-rate": 5e-3,
        "p2p.records": 12,
    },
}
WRITERS: Settings = {
    "data.partition": "groups",
    "data.image-column": "images",
    "data.label-column": "labels",
    "data.site-column": "writer",
    "data.labels": "0,1,2,3,4,5,6,7,8,9",
    "data.max-examples": 240,
}


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    place: str
    attack: str
    faulty: int
    rule: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.place}/{self.attack}/{self.faulty}/{self.rule}/seed{self.seed}"


def cells(
    places: list[str], rules: list[str], attacks: list[str], seeds: list[int]
) -> Iterator[Cell]:
    """Yield the grid in the order in which it is run."""
    for place in places:
        for seed in seeds:
            for rule in rules:
                yield Cell(place, "none", 0, rule, seed)
            for faulty in FAULTY:
                if "oracle" in rules:
                    yield Cell(place, "none", faulty, "oracle", seed)
                for attack in attacks:
                    for rule in rules:
                        if rule not in ONCE:
                            yield Cell(place, attack, faulty, rule, seed)


def faulty_sites(sites: list[str], faulty: int, seed: int) -> list[str]:
    """Return which of the sites are faulty: drawn from the seed, the fewer among the more."""
    order = np.random.default_rng(derive_seed(seed, "faulty")).permutation(sorted(sites))
    return sorted(str(name) for name in order[:faulty])


def settings(cell: Cell, sites: list[str]) -> Settings:
    """Return what a cell adds to the settings of its place."""
    bad, honest = faulty_sites(sites, cell.faulty, cell.seed), len(sites) - cell.faulty
    known = min(cell.faulty, len(sites) - 3)
    trim = min(cell.faulty, (len(sites) - 1) // 2)
    return {
        "faults.sites": ",".join(bad),
        **ATTACKS.get(cell.attack, {"faults.attack": "none"}),
        **RULES[cell.rule],
        "krum.faulty": known,
        "multi-krum.faulty": known,
        "multi-krum.selected": honest if cell.faulty else 0,
        "trimmed-mean.beta": (trim + 0.5) / len(sites) if trim else 0.0,
        "fltrust.root": min(set(sites) - set(bad)),
    }


class Runner:
    """Runs cells; keeps the newest place's federation, whose records are prepared once a seed."""

    def __init__(self, data: str) -> None:
        self._data, self._made = data, ("", -1)
        self._folder = tempfile.TemporaryDirectory()

    def run(self, cell: Cell) -> dict[str, Any]:
        """Return the entry of a cell."""
        from benchmarks.byzantine_run import Federation

        if self._made != (cell.place, cell.seed):
            self._base = {**TRAINING, **PLACES[cell.place], **self._source(cell), "seed": cell.seed}
            self._federation = Federation(RunConfig.from_flat(self._base))
            self._made = (cell.place, cell.seed)
        own = settings(cell, self._federation.sites)
        found = self._federation.run(RunConfig.from_flat({**self._base, **own}))
        return {"settings": {k: v for k, v in own.items() if v != ""}, **found}

    def _source(self, cell: Cell) -> Settings:
        if cell.place == "texts":
            return {"data.source": str(write_texts(Path(self._folder.name) / "texts.jsonl"))}
        return {**WRITERS, "data.source": self._data} if self._data else {}


def write_texts(path: Path) -> Path:
    """Write heart notes and rated texts as one source of eight sites."""
    from client_app.data.sources.heart import read_heart
    from client_app.data.sources.sentiment import read_sentiment

    if not path.exists():
        with path.open("w", encoding="utf-8") as stream:
            for table in (read_heart(), read_sentiment()):
                numbers = {label: str(i) for i, label in enumerate(table.label_map or ())}
                for example, site in zip(table.examples, table.sites or (), strict=True):
                    row = {
                        "text": example.content, "label": numbers[example.stratum], "site": site
                    }  # fmt: skip
                    stream.write(json.dumps(row) + "\n")
    return path


RESULTS = Results(
    Path(__file__).resolve().parent / "results" / "byzantine.json",
    lambda runs: {
        "places": PLACES, "attacks": ATTACKS, "rules": RULES,
        "table": rows(runs), "claims": claims(rows(runs)),
    },
)  # fmt: skip


def plan(todo: list[Cell], runs: Runs) -> str:
    """Return how many runs there are, and how long they take by what has been measured."""
    lines, total = [], 0.0
    for place in sorted({cell.place for cell in todo}):
        mine = [cell for cell in todo if cell.place == place]
        seen: dict[str, list[float]] = {}
        for key, run in runs.items():
            if key.startswith(f"{place}/"):
                seen.setdefault(key.split("/")[3], []).append(run["cpu_seconds"])
        left = [cell for cell in mine if cell.key not in runs]
        if not seen:
            lines.append(f"{place}: {len(mine)} runs; run one cell to know how long they take")
            continue
        known = {rule: fmean(values) for rule, values in seen.items()}
        usual = fmean(known.values())
        hours = sum(known.get(cell.rule, usual) for cell in left) / 3600
        total += hours
        lines.append(
            f"{place}: {len(mine)} runs, {len(left)} left, {usual:.1f} s each "
            f"({len(known)} rules measured): {hours:.2f} core hours"
        )
    return "\n".join([*lines, f"in all: {total:.2f} core hours left"])


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = partial(parser.add_argument, nargs="+")
    parser.add_argument("stage", nargs="?", default="print", choices=("plan", "run", "print"))
    add("--places", default=list(PLACES), choices=list(PLACES))
    add("--rules", default=list(RULES), choices=list(RULES))
    add("--attacks", default=list(ATTACKS), choices=list(ATTACKS))
    add("--seeds", type=int, default=[0, 1, 2])
    parser.add_argument("--data", default="", help="npz file of images, with a column of writers")
    parser.add_argument("--hours", type=float, default=3.0, help="no run begins after so long")
    parser.add_argument("--most", type=int, default=0, help="most runs; 0: no limit")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th run, from the I-th on")
    options = parser.parse_args()
    first, step = map(int, options.part.split("/"))
    todo = list(cells(options.places, options.rules, options.attacks, options.seeds))[first::step]
    runs, runner = RESULTS.load(), Runner(options.data)
    if options.stage == "plan":
        print(plan(todo, runs))
        return
    started, done = time.monotonic(), 0
    for cell in todo if options.stage == "run" else ():
        if time.monotonic() - started > 3600 * options.hours or 0 < options.most <= done:
            break
        if cell.key not in runs:
            runs, done = RESULTS.save(cell.key, runner.run(cell)), done + 1
            mean = fmean(runs[cell.key]["accuracy"].values())
            print(f"{time.strftime('%H:%M:%S')}  {cell.key}: {mean:.3f}", file=sys.stderr)
    print(show(runs))


if __name__ == "__main__":
    main()
