"""What Dysco adds to a round: bases at a site, folding, fusing at the coordinator.

Usage:
    python -m benchmarks.dysco_overhead
    python -m benchmarks.dysco_overhead --data embedded:sentiment --repetitions 7
    python -m benchmarks.dysco_overhead kernels --features 384 2048 4096

Each repetition runs a site's round without Dysco (evaluation of the received model, local steps,
evaluation of the personal model) and what Dysco adds to it: watching the first evaluation and the
bases from it, the folding and unfolding of what was learned, twice, and at the coordinator the
fusion for all sites and the folding of their products at the cap ``dysco.folded-rank``. What an
exchange costs on a network is not in it.
In processor time, which other programs disturb less, and in wall time; the overhead is the median
of the ratios. ``kernels`` measures one layer's decomposition and one layer's fusion at other
widths, and projects them to decoders of these widths whose queries and values are adapted: one
input a block, two fusions. Results: benchmarks/results/dysco_overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_app.activations import Sample
from client_app.bases import decomposing, site_bases
from client_app.data import load_usable_sites
from client_app.data.site_data import SiteData
from client_app.evaluation import evaluate
from client_app.folding import Folding
from client_app.methods.dysco import Dysco
from client_app.models import load_resident
from client_app.runtime import compute_settings
from client_app.training import train
from fedapp.adapter import Adapter, LoraPair
from fedapp.blas import single_thread
from fedapp.config import RunConfig
from fedapp.subspaces import (
    fuse_bases,
    insensitive_subspace,
    insensitive_subspace_of_tokens,
    random_basis,
)
from server_app.app import build_strategy
from server_app.strategies.folding import Folding as FoldingStrategy

RESULT = Path(__file__).resolve().parent / "results" / "dysco_overhead.json"
SITES = 4
BLOCKS = {384: 6, 2048: 16, 4096: 32}
"""Blocks of models of these widths: MiniLM, Llama 3.2 1B, Llama 3.1 8B."""


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return processor and wall time of a call, in seconds."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


def measure_round(data: str, steps: int, tokens: int, repetitions: int) -> dict[str, Any]:
    """Measure the parts of a round of one site."""
    flat = {"method": "dysco", "data.source": data, "train.threads": 1, "dysco.tokens": tokens}
    if data == "embedded:sentiment":
        flat |= {"data.partition": "dirichlet"}
    config = RunConfig.from_flat({**flat, "train.max-steps": steps, "train.local-epochs": 1000})
    sites = load_usable_sites(config).values()
    site = max((s for s in sites if isinstance(s, SiteData)), key=lambda s: len(s.splits["train"]))
    resident = load_resident(config, site.label_map)
    items = resident.task.prepare(site.splits["train"])
    evaluated = resident.task.prepare(site.splits["validation"])
    initial = resident.parameters.initial(0)
    resident.parameters.load(initial)
    work = _delta(resident.parameters.pairs, SITES * config.lora.rank)
    delta = _delta(resident.parameters.pairs, config.dysco.folded_rank)

    def evaluation() -> None:
        evaluate(resident, evaluated, config, resident.device)

    def bases() -> None:
        with decomposing(config) as started:
            sample = Sample(
                resident, evaluated, items, config, tokens=tokens, seed=0, complete=started.start
            )
            evaluate(resident, evaluated, config, resident.device, sample.watch)
            site_bases(sample.inputs(), config, site=site.site, round=1, decompositions=started)

    def fold() -> None:
        with Folding(resident) as folding:
            folding.apply(delta)

    def steps_of_a_round() -> None:
        epochs = -(-steps * config.train.batch_size // len(items)) + 1
        train(resident, items, Dysco(config, resident.parameters), config, seed=0, first_step=0,
              total_steps=steps, epochs=epochs)  # fmt: skip

    shapes = [tuple(pair.a_rn.shape) for pair in resident.parameters.pairs.values()]
    parts = {
        "evaluation": evaluation,
        "evaluation and bases": bases,
        "training": steps_of_a_round,
        "fold": fold,
        "fuse": _fuse(shapes),
        "accept": _accept(config, initial, delta, work),
    }
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
    with compute_settings(config.train, resident.device), single_thread():
        for repetition in range(repetitions + 1):
            for name, work in parts.items():
                seconds = timed(work)
                if repetition:  # the first one warms up
                    runs[name].append(seconds)
    result: dict[str, Any] = {
        "site": site.site, "steps": steps, "tokens": tokens, "layers": len(shapes),
        "evaluated": len(evaluated), "repetitions": repetitions,
    }  # fmt: skip
    for kind, index in (("processor", 0), ("wall", 1)):
        of = {name: [run[index] for run in found] for name, found in runs.items()}
        # What was learned is folded twice a round: for the bases, and for the training.
        rounds = [2 * e + t for e, t in zip(of["evaluation"], of["training"], strict=True)]
        added = [
            both - alone + 2 * folding + fusing + accepting
            for both, alone, folding, fusing, accepting in zip(
                of["evaluation and bases"],
                of["evaluation"],
                of["fold"],
                of["fuse"],
                of["accept"],
                strict=True,
            )
        ]
        ratios = [more / whole for more, whole in zip(added, rounds, strict=True)]
        result[kind] = {name: statistics.median(values) for name, values in of.items()}
        result[kind]["overhead"] = statistics.median(ratios)
    return result


def measure_kernels(features: list[int], tokens: int, repetitions: int) -> list[dict[str, Any]]:
    """Measure one layer's decomposition, by its Gram and by its tokens, and one layer's fusion."""
    rows = []
    for width in features:
        h_tn = np.random.default_rng(0).standard_normal((tokens, width)).astype(np.float32)
        parts: dict[str, Callable[[], Any]] = {
            "tokens": lambda h=h_tn: insensitive_subspace_of_tokens(h, 8, 0.01).draw(8, 0),
            "fuse": _fuse([(8, width)]),
        }
        if width <= 2048:
            gram_nn = h_tn.T @ h_tn
            parts["gram"] = lambda g=gram_nn: insensitive_subspace(g, 8, 0.01).draw(8, 0)
        row: dict[str, Any] = {"features": width, "rows": tokens}
        for name, work in parts.items():
            row[name] = statistics.median(timed(work)[0] for _ in range(repetitions))
        if width in BLOCKS:
            row["blocks"] = BLOCKS[width]
            row["site_seconds"] = BLOCKS[width] * row["tokens"]
            row["coordinator_seconds"] = 2 * BLOCKS[width] * row["fuse"]
        rows.append(row)
    return rows


def _delta(pairs: dict[str, Any], rank: int) -> Adapter:
    rng = np.random.default_rng(0)
    return Adapter(
        {
            name: LoraPair(
                rng.standard_normal((pair.b_mr.shape[0], rank)).astype(np.float32),
                rng.standard_normal((rank, pair.a_rn.shape[1])).astype(np.float32),
                1e-6,
            )
            for name, pair in pairs.items()
        }
    )


def _accept(config: RunConfig, initial: Adapter, past: Adapter, work: Adapter) -> Callable[[], Any]:
    """Fold a round's products into what was learned before, as the coordinator does."""
    strategy = build_strategy(config)
    assert isinstance(strategy, FoldingStrategy)
    strategy.begin(initial)
    merged = Adapter(work.pairs, initial.tensors)

    def fold() -> None:
        strategy.folded = past
        strategy.accept(1, merged)

    return fold


def _fuse(shapes: list[tuple[int, ...]]) -> Callable[[], None]:
    bases = [[random_basis(n, r, site) for site in range(SITES)] for r, n in shapes]

    def work() -> None:
        for (rank, _), stacks in zip(shapes, bases, strict=True):
            fuse_bases(stacks, rank)

    return work


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="?", default="round", choices=("round", "kernels"))
    parser.add_argument("--data", nargs="+", default=["embedded:heart", "embedded:sentiment"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--features", type=int, nargs="+", default=[384, 2048, 4096])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if options.what == "kernels":
        content["kernels"] = measure_kernels(options.features, options.tokens, options.repetitions)
    else:
        for data in options.data:
            content.setdefault("round", {})[data] = measure_round(
                data, options.steps, options.tokens, options.repetitions
            )
    content["machine"] = {"cores": os.cpu_count(), "machine": platform.machine(), "threads": 1}
    content["versions"] = {"torch": torch.__version__, "numpy": np.__version__}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content[options.what], indent=1))


if __name__ == "__main__":
    main()
