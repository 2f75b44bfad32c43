"""What error feedback is worth where merges change the basis: least squares, every method's merge.

Usage:
    python -m benchmarks.feedback

Each of four sites pulls a pair towards a matrix of its own by eight Adam steps a round; the server
merges as the method does. The figure is the distance of the merged products from those of the fp32
run, relative to them, after 30 rounds and on average over the rounds; means over the seeds. No
model, no data, a minute on one core. Results go to benchmarks/results/feedback.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.feedback import encode_payloads
from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import Codec
from fedapp.increments import add
from server_app.merges import (
    average_b_then_svd,
    average_factors,
    orthonormal_basis,
    sum_products,
)

RESULTS = Path(__file__).resolve().parent / "results" / "feedback.json"
M, N, R, SITES, ROUNDS, STEPS, SEEDS = 96, 80, 4, 4, 30, 8, 6

MERGES: dict[str, Callable[[list[Any], Adapter], Adapter]] = {
    "fedavg": lambda updates, sent: average_factors(updates),
    "svd": lambda updates, sent: sum_products(updates),
    "fedsvd": average_b_then_svd,
    "subspace-reg": lambda updates, sent: orthonormal_basis(updates),
}
# What of a site's state reaches its next round.
FEEDBACK: dict[str, tuple[bool, bool]] = {
    "none": (False, False),
    "same numbers": (True, False),
    "new basis": (True, True),
}


@dataclass
class _Update:
    adapter: Adapter
    weight: float = 1.0
    site: str = ""


def run(method: str, codec: Codec, feedback: str, seed: int) -> list[NDArray[Any]]:
    """Return the merged product of every round."""
    rng = np.random.default_rng(seed)
    keeps, new_basis = FEEDBACK[feedback]
    common = rng.normal(size=(M, 2 * R)) @ rng.normal(size=(2 * R, N)) / 8
    targets = [
        common + rng.normal(size=(M, R)) @ rng.normal(size=(R, N)) / 10 for _ in range(SITES)
    ]
    a_rn = rng.uniform(-2, 2, size=(R, N)) / np.sqrt(N)
    model = Adapter({"w": LoraPair(np.zeros((M, R), np.float32), a_rn.astype(np.float32), 1.0)})
    kept: list[dict[str, Any]] = [{} for _ in range(SITES)]
    products = []
    for round in range(ROUNDS):
        rate, updates = 0.02 * (1 - round / ROUNDS) + 0.001, []
        for site, target in enumerate(targets):
            trained = _train(model, target, rate, freeze_a=method == "fedsvd")
            if codec == "fp32":
                updates.append(_Update(trained))
                continue
            packed, kept[site] = encode_payloads(
                {"adapter": trained},
                {"adapter": model},
                codec,
                kept[site] if keeps else None,
                new_basis=new_basis,
            )
            updates.append(_Update(add(model, packed["adapter"].unpack())))
        model = MERGES[method](updates, model)
        pair = model.pairs["w"]
        products.append(pair.b_mr.astype(np.float64) @ pair.a_rn)
    return products


def _train(model: Adapter, target: NDArray[Any], rate: float, freeze_a: bool) -> Adapter:
    """Take Adam steps on ``||B A - target||_F^2 / 2``."""
    pair = model.pairs["w"]
    values = [pair.b_mr.astype(np.float64), pair.a_rn.astype(np.float64)]
    moments = [(np.zeros_like(value), np.zeros_like(value)) for value in values]
    for step in range(1, STEPS + 1):
        error = values[0] @ values[1] - target
        gradients = [error @ values[1].T, values[0].T @ error]
        for index in range(1 if freeze_a else 2):
            first, second = moments[index]
            first = 0.9 * first + 0.1 * gradients[index]
            second = 0.999 * second + 0.001 * gradients[index] ** 2
            moments[index] = first, second
            direction = first / (1 - 0.9**step)
            values[index] -= rate * direction / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    b_mr, a_rn = (value.astype(np.float32) for value in values)
    return Adapter({"w": LoraPair(b_mr, pair.a_rn if freeze_a else a_rn, pair.scaling)})


def distances(method: str, codec: Codec, feedback: str, seeds: int = SEEDS) -> dict[str, float]:
    """Return the distances from the fp32 run, see the module's text."""
    last, mean = [], []
    for seed in range(seeds):
        exact = run(method, "fp32", "none", seed)
        short = run(method, codec, feedback, seed)
        errors = [
            float(np.linalg.norm(s - e) / np.linalg.norm(e))
            for s, e in zip(short, exact, strict=True)
        ]
        last.append(errors[-1])
        mean.append(statistics.fmean(errors))
    return {"last": statistics.fmean(last), "mean": statistics.fmean(mean)}


def main() -> None:
    """Print and write the table."""
    table: dict[str, Any] = {}
    codecs: tuple[Codec, ...] = ("bf16", "int8")
    for method in MERGES:
        for codec in codecs:
            for feedback in FEEDBACK:
                if method == "fedavg" and feedback == "new basis":
                    continue
                found = distances(method, codec, feedback)
                table[f"{method}/{codec}/{feedback}"] = found
                figures = f"last {found['last']:.2e}  mean {found['mean']:.2e}"
                print(f"{method:<13}{codec:<6}{feedback:<14}{figures}", flush=True)
    RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
