"""Dysco's synthetic benchmark: clients whose inputs lie in orthogonal subspaces, own targets each.

Usage:
    python -m benchmarks.dysco_synthetic run --layers 1 2 3 4 5 --clients 4 10 32 100
    python -m benchmarks.dysco_synthetic print

Client i's inputs span their own d / N of the d input dimensions (plus, with noise, a little of
all), and its targets come from its own teacher network. One student network is trained by all; its
loss is the mean over the clients of the *global* model's error, relative to that before round 1.
A perfect student exists for one layer: each client's target is a matrix on its own subspace.

The methods: ``fedavg`` (both factors averaged), ``ffa`` (a fixed common A), ``random-boost`` (a
random orthonormal A for all, redrawn every round, and folding: what of Dysco's gain needs no
knowledge of the others), ``dysco`` (rotated basis), ``dysco-eigh`` (the literal reading).
Every method trains with Adam at each of `RATES`, and beyond while the best one lies at an end; the
best rate of the first seed (its training loss is the figure itself, for all methods alike) serves
the further ones.

Results go to benchmarks/results/dysco_synthetic.json as cells end; what is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapp.subspaces import fuse_bases, insensitive_basis

RESULTS = Path(__file__).resolve().parent / "results" / "dysco_synthetic.json"
METHODS = ("fedavg", "ffa", "random-boost", "dysco", "dysco-eigh")
RATES = (3e-3, 1e-2, 3e-2)
LOWER, HIGHER = (1e-3, 3e-4), (1e-1, 3e-1)
"""Tried one after the other while the lowest, or the highest, rate so far is the best."""
RANK = 8
ROUNDS = 30
STEPS = 20
# Fraction of the activations' energy that the insensitive subspace may hold: none without noise
# beyond rounding, and with it about what the noise puts in the dimensions that are not the site's.
ENERGY = {0.0: 1e-6, 0.05: 0.02}


@dataclass(frozen=True)
class Cell:
    """One run: the sizes, the method and its settings."""

    method: str
    layers: int
    clients: int
    noise: float
    rate: float
    seed: int
    scale: str = "mean"

    @property
    def features(self) -> int:
        """Width of every layer: 64, more if a client would get less than one dimension."""
        return 64 if self.clients <= 64 else 128

    @property
    def tokens(self) -> int:
        """Inputs of a client."""
        return 64 if self.clients <= 64 else 32

    @property
    def key(self) -> str:
        """Name in the results."""
        return "/".join(f"{k}={v}" for k, v in asdict(self).items())


class Federation:
    """All clients at once: a batch dimension ``N`` in front of everything that is a client's."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        draw = torch.Generator().manual_seed(cell.seed)
        n, d, t, layers = cell.clients, cell.features, cell.tokens, cell.layers
        rotation_dd = torch.linalg.qr(torch.randn(d, d, generator=draw))[0]
        share = d // n
        own_nsd = torch.stack([rotation_dd[i * share : (i + 1) * share] for i in range(n)])
        self.x_ntd = torch.randn(n, t, share, generator=draw) @ own_nsd * math.sqrt(d / share)
        self.x_ntd += cell.noise * torch.randn(n, t, d, generator=draw)
        teachers = torch.randn(layers, n, d, d, generator=draw) / math.sqrt(d)
        self.weights = list(torch.randn(layers, d, d, generator=draw) / math.sqrt(d))
        with torch.no_grad():
            self.y_ntd = self._through([(t, None) for t in teachers], self.x_ntd)
        self.draw = draw

    def _through(self, layers: list[tuple[Tensor, tuple[Tensor, Tensor] | None]], h: Tensor,
                 inputs: list[Tensor] | None = None) -> Tensor:  # fmt: skip
        """Run a network of weights and adapters, ReLU between the layers."""
        for index, (weight, pair) in enumerate(layers):
            if index:
                h = torch.relu(h) * math.sqrt(2)
            if inputs is not None:
                inputs.append(h)
            out = h @ weight.mT
            if pair is not None:
                a_nrd, b_ndr = pair
                out = out + (h @ a_nrd.mT) @ b_ndr.mT
            h = out
        return h

    def loss(self, pairs: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Return the mean squared error of every client, ``(N,)``."""
        layers = list(zip(self.weights, pairs or [None] * len(self.weights), strict=True))
        return (self._through(layers, self.x_ntd) - self.y_ntd).square().mean((1, 2))

    @torch.no_grad()
    def inputs(self) -> list[Tensor]:
        """Return what every layer of the global model sees, ``(N, T, d)`` a layer."""
        seen: list[Tensor] = []
        self._through([(weight, None) for weight in self.weights], self.x_ntd, seen)
        return seen

    def train(self, pairs: list[tuple[Tensor, Tensor]], both: bool) -> None:
        """Train every client's own pairs in place: B, and A as well if ``both``."""
        trained = [tensor for a, b in pairs for tensor in ((a, b) if both else (b,))]
        for tensor in trained:
            tensor.requires_grad_()
        optimizer = torch.optim.Adam(trained, lr=self.cell.rate, foreach=True)
        for _ in range(STEPS):
            optimizer.zero_grad()
            self.loss(pairs).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for tensor in trained:
            tensor.requires_grad_(False)


def run(cell: Cell) -> dict[str, Any]:
    """Train one federation; return the relative loss of the global model after every round."""
    federation = Federation(cell)
    started = time.process_time()
    first = float(federation.loss().mean())
    rounds = _average(federation) if cell.method in ("fedavg", "ffa") else _boost(federation)
    losses = [loss / first for loss in rounds]
    return {
        **asdict(cell),
        "losses": [round(value, 6) for value in losses],
        "final": losses[-1],
        "cpu_seconds": round(time.process_time() - started, 2),
    }


def _average(federation: Federation) -> list[float]:
    """FedAvg of the factors; with ``ffa`` A stays as drawn."""
    cell = federation.cell
    n, d = cell.clients, cell.features
    shared = [
        (torch.randn(RANK, d, generator=federation.draw) / math.sqrt(d), torch.zeros(d, RANK))
        for _ in federation.weights
    ]
    losses = []
    for _ in range(ROUNDS):
        pairs = [(a.repeat(n, 1, 1), b.repeat(n, 1, 1)) for a, b in shared]
        federation.train(pairs, both=cell.method == "fedavg")
        shared = [(a.mean(0), b.mean(0)) for a, b in pairs]
        with torch.no_grad():
            losses.append(float(federation.loss(shared).mean()))
    return losses


def _boost(federation: Federation) -> list[float]:
    """A fresh B on a given A every round, folded into the weights as the sum of the products."""
    cell = federation.cell
    n, d = cell.clients, cell.features
    share = 1.0 if cell.scale == "sum" else 1 / n
    losses = []
    for round in range(ROUNDS):
        bases = _bases(federation, round)
        pairs = [(a_nrd, torch.zeros(n, d, RANK)) for a_nrd in bases]
        federation.train(pairs, both=False)
        for weight, (a_nrd, b_ndr) in zip(federation.weights, pairs, strict=True):
            weight += share * torch.einsum("nor,nrd->od", b_ndr, a_nrd)
        loss = float(federation.loss().mean())
        losses.append(loss)
        if not math.isfinite(loss) or loss > 1e6:
            break  # diverged; the last figure says so
    return losses


def _bases(federation: Federation, round: int) -> list[Tensor]:
    """Return the A of every client, ``(N, r, d)`` a layer."""
    cell = federation.cell
    n, d = cell.clients, cell.features
    if cell.method == "random-boost":
        drawn = [torch.randn(d, RANK, generator=federation.draw) for _ in federation.weights]
        return [torch.linalg.qr(g).Q.T.repeat(n, 1, 1) for g in drawn]
    result = []
    for layer, h_ntd in enumerate(federation.inputs()):
        grams = (h_ntd.mT @ h_ntd).double().numpy()
        bases = [
            insensitive_basis(
                gram,
                RANK,
                (cell.seed, round, layer, client),
                ENERGY[cell.noise],
                basis="eigh" if cell.method == "dysco-eigh" else "rotated",
            )
            for client, gram in enumerate(grams)
        ]
        fused = np.stack(fuse_bases(bases, RANK))
        result.append(torch.from_numpy(fused).float())
    return result


def tune(cells: dict[str, Any], place: Cell) -> list[dict[str, Any]]:
    """Return runs of a setting at every rate; at more of them while the best lies at an end."""
    tuned = [found(cells, replace(place, rate=rate)) for rate in RATES]
    for further, end in ((LOWER, min), (HIGHER, max)):
        for rate in further:
            if best_rate(tuned) != end(run["rate"] for run in tuned):
                break
            tuned.append(found(cells, replace(place, rate=rate)))
    return tuned


def found(cells: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the run of a cell, from the results if it is there."""
    if cell.key not in cells:
        cells[cell.key] = run(cell)
        write(cells)
    result: dict[str, Any] = cells[cell.key]
    return result


def load() -> dict[str, Any]:
    """Return the cells that are there already."""
    return json.loads(RESULTS.read_text())["cells"] if RESULTS.exists() else {}


def write(cells: dict[str, Any]) -> None:
    """Write all cells and the table they make."""
    document = {
        "benchmark": "relative loss of the global model on orthogonal input partitions",
        "sizes": {"rank": RANK, "rounds": ROUNDS, "steps": STEPS, "rates": RATES, "energy": ENERGY},
        "table": table(cells),
        "cells": cells,
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": sys.version},
        "machine": {"cores": os.cpu_count(), "machine": platform.machine()},
    }
    temporary = RESULTS.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(RESULTS)


def table(cells: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per setting: final loss by method at its best rate, FedAvg's over Dysco's."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells.values():
        place = (cell["scale"], cell["noise"], cell["layers"], cell["clients"])
        groups.setdefault(place, []).append(cell)
    rows = []
    for (scale, noise, layers, clients), mine in sorted(groups.items()):
        row: dict[str, Any] = {
            "scale": scale, "noise": noise, "layers": layers, "clients": clients,
        }  # fmt: skip
        for method in METHODS:
            runs = [c for c in mine if c["method"] == method]
            if runs:
                rate = best_rate(runs)
                finals = [c["final"] for c in runs if c["rate"] == rate]
                row[method] = {
                    "rate": rate,
                    "mean": statistics.fmean(finals),
                    "std": statistics.pstdev(finals),
                    "n": len(finals),
                }
        if "fedavg" in row and "dysco" in row:
            row["fedavg / dysco"] = row["fedavg"]["mean"] / row["dysco"]["mean"]
        rows.append(row)
    return rows


def best_rate(runs: list[dict[str, Any]]) -> float:
    """Return the rate with the lowest final loss of the first seed."""
    first = min(run["seed"] for run in runs)
    tried = [run for run in runs if run["seed"] == first]
    return float(min(tried, key=_final)["rate"])


def _final(run: dict[str, Any]) -> float:
    return float(run["final"]) if math.isfinite(run["final"]) else math.inf


def show(cells: dict[str, Any]) -> None:
    """Print the table."""
    for row in table(cells):
        head = (
            f"{row['scale']:4s} noise {row['noise']:<4g} L={row['layers']} N={row['clients']:<3d}"
        )
        parts = [
            f"{m} {row[m]['mean']:.3f}±{row[m]['std']:.3f} ({row[m]['rate']:g})"
            for m in METHODS if m in row
        ]  # fmt: skip
        ratio = f"fedavg/dysco {row['fedavg / dysco']:.1f}" if "fedavg / dysco" in row else ""
        print(head, *parts, ratio, sep="  ")


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="?", default="run", choices=("run", "print"))
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 10, 32, 100])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.05])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--scale", default="mean", choices=("mean", "sum"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = load()
    places = [
        (clients, layers, noise, method)
        for clients in options.clients for layers in options.layers
        for noise in options.noise for method in options.methods
    ]  # fmt: skip
    for clients, layers, noise, method in places if options.what == "run" else []:
        place = Cell(method, layers, clients, noise, 0.0, options.seeds[0], options.scale)
        tuned = tune(cells, place)
        for seed in options.seeds[1:]:
            found(cells, replace(place, rate=best_rate(tuned), seed=seed))
        print(method, layers, clients, noise, f"{tuned[0]['cpu_seconds']} s", file=sys.stderr)
    show(cells)


if __name__ == "__main__":
    main()
