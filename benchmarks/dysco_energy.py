"""Why Dysco gains or does not: what a hospital still sees of itself where the others see nothing.

Usage:
    python -m benchmarks.dysco_energy
    python -m benchmarks.dysco_energy --data heart --energies 0.001 0.01 0.1

A site trains B on rows A_i that the others' activations hardly use. It can learn there only as far
as its own activations use them. In units of what a random orthonormal basis catches (1 = no
different from random): ``own``, the energy of a site's activations in its A_i, and ``others``, that
of the other sites' activations in it. ``own / others`` is the separation that Dysco lives on; of
the synthetic benchmark, whose clients' inputs are orthogonal, it is without bound. ``overlap`` is
the share of the insensitive subspace of one site that lies in another's.

Activations are those of the base model, of all training records. Results:
benchmarks/results/dysco_energy.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.sweep import DATA
from client_app.activations import collect_inputs
from client_app.data import load_usable_sites
from client_app.data.site_data import SiteData
from client_app.models import load_resident
from client_app.runtime import compute_settings
from fedapp.config import RunConfig
from fedapp.results import versions
from fedapp.subspaces import Subspace, fuse_bases, insensitive_subspace

RESULT = Path(__file__).resolve().parent / "results" / "dysco_energy.json"
ENERGIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
DRAWS = 5

Gram = NDArray[np.float64]


def grams(data: str) -> list[list[Gram]]:
    """Return the second moments of every distinct input, of every site, trace 1 each."""
    flat = {**DATA[data], "method": "dysco", "train.threads": 2}
    config = RunConfig.from_flat(flat)
    result = []
    for site in load_usable_sites(config).values():
        assert isinstance(site, SiteData)
        resident = load_resident(config, site.label_map)
        resident.parameters.load(resident.parameters.initial(0))
        with compute_settings(config.train, resident.device):
            items = resident.task.prepare(site.splits["train"])
            found = collect_inputs(resident, items, config, tokens=10**7, seed=0)
        own = []
        for one in found:
            assert one.gram_nn is not None
            gram_nn = one.gram_nn.double().numpy()
            own.append(gram_nn / np.trace(gram_nn))
        result.append(own)
    return result


def measure(of_sites: list[list[Gram]], energy: float, rank: int) -> dict[str, float]:
    """Return means over layers, sites and draws."""
    own, others, overlap, share = [], [], [], []
    for layer in zip(*of_sites, strict=True):
        subspaces = [insensitive_subspace(gram, rank, energy) for gram in layer]
        features = len(layer[0])
        share += [s.dimension / features for s in subspaces]
        overlap += [
            float(np.square(a.v_nk.T @ b.v_nk).sum()) / a.dimension
            for a in subspaces for b in subspaces if a is not b
        ]  # fmt: skip
        for draw in range(DRAWS):
            fused = _fused(subspaces, rank, draw)
            for i, a_rn in enumerate(fused):
                caught = [float(np.sum((a_rn @ gram) * a_rn)) * features / rank for gram in layer]
                own.append(caught[i])
                others.append(statistics.fmean(caught[:i] + caught[i + 1 :]))
    return {
        "energy": energy,
        "insensitive_share": statistics.fmean(share),
        "overlap": statistics.fmean(overlap),
        "own": statistics.fmean(own),
        "others": statistics.fmean(others),
        "own / others": statistics.fmean(own) / statistics.fmean(others),
    }


def _fused(subspaces: list[Subspace], rank: int, draw: int) -> list[NDArray[np.float64]]:
    return fuse_bases([s.draw(rank, (draw, i)) for i, s in enumerate(subspaces)], rank, seed=draw)


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--energies", type=float, nargs="+", default=ENERGIES)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args()
    content: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for data in options.data:
        of_sites = grams(data)
        rows = [measure(of_sites, energy, options.rank) for energy in options.energies]
        content[data] = {"rank": options.rank, "draws": DRAWS, "rows": rows}
        print(data)
        for row in rows:
            print("  " + "  ".join(f"{name} {value:.3g}" for name, value in row.items()))
    content["versions"] = {**versions(), "torch": torch.__version__}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
