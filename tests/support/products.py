"""Random federations of low-rank products, and the dense oracle that forms every matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from hypothesis import strategies as st

TOLERANCE = 1e-12  # relative to the sum of the products' norms


@dataclass
class Federation:
    pairs: list
    weights: list
    rng: np.random.Generator

    @property
    def products(self):
        return [b.astype(np.float64) @ a.astype(np.float64) for b, a in self.pairs]

    @property
    def total(self):
        return sum(w * p for w, p in zip(self.weights, self.products, strict=True))

    @property
    def scale(self):
        norms = [np.linalg.norm(p) for p in self.products]
        return sum(abs(w) * norm for w, norm in zip(self.weights, norms, strict=True)) or 1.0


@st.composite
def federations(draw, max_clients=6):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n = draw(st.integers(2, 24)), draw(st.integers(2, 24))
    kind = draw(st.sampled_from(["independent", "near", "identical", "opposed", "zero-b"]))
    spread = 10.0 ** draw(st.integers(-3, 3))
    clients = draw(st.integers(1, max_clients))
    common_rank = draw(st.integers(1, min(m, n, 4)))
    common = rng.normal(size=(m, common_rank)), spread * rng.normal(size=(common_rank, n))
    pairs = []
    for _ in range(clients):
        rank = draw(st.integers(1, min(m, n, 4)))
        b, a = rng.normal(size=(m, rank)), spread * rng.normal(size=(rank, n))
        if kind == "near":
            b = common[0] + 1e-6 * rng.normal(size=common[0].shape)
            a = common[1] + 1e-6 * spread * rng.normal(size=common[1].shape)
        elif kind in ("identical", "opposed"):
            b, a = common
        elif kind == "zero-b":
            b = np.zeros_like(b)
        pairs.append((b, a))
    weights = rng.uniform(0.1, 2.0, clients)
    if kind == "opposed":
        weights *= (-1.0) ** np.arange(clients)
    return Federation(pairs, weights.tolist(), rng)


def turn(federation):
    """Return the same products in another gauge: B Q, Q^-1 A."""
    turned = []
    for b, a in federation.pairs:
        r = b.shape[1]
        q = scipy.linalg.qr(federation.rng.normal(size=(r, r)))[0]
        q = q * federation.rng.uniform(0.3, 3.0, r)
        turned.append((b @ q, np.linalg.solve(q, a)))
    return turned


def shuffle(federation):
    order = federation.rng.permutation(len(federation.pairs))
    return (
        order,
        [federation.pairs[k] for k in order],
        [federation.weights[k] for k in order],
    )
