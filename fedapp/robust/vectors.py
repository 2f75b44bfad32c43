"""Models as flat vectors, and what every rule asks of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter

Vector = NDArray[np.floating[Any]]
Vectors = NDArray[np.floating[Any]]
Double = NDArray[np.float64]


def to_vector(adapter: Adapter) -> Vector:
    """Return all trained numbers in wire order, (P,).

    Of a LoRA pair these are A and B, so that a rule acts on factors, not on their product.
    """
    return np.concatenate([array.ravel() for _, array in adapter.arrays()])


def from_vector(vector_p: Vector, like: Adapter) -> Adapter:
    """Return the adapter of the layout of ``like`` that `to_vector` makes this vector of."""
    if vector_p.shape != (like.size,):
        raise ValueError(f"expected a vector of {like.size} numbers, got shape {vector_p.shape}")
    sizes = [array.size for _, array in like.arrays()]
    pieces = np.split(vector_p.astype(np.float32), np.cumsum(sizes)[:-1])
    named = {name: piece for (name, _), piece in zip(like.arrays(), pieces, strict=True)}
    return like.map(lambda name, array: named[name].reshape(array.shape))


def check(vectors_kp: Vectors, own_p: Vector | None = None) -> None:
    """Raise ValueError unless the rows are finite and of one length with the own model."""
    width = None if own_p is None else own_p.shape
    if vectors_kp.ndim != 2 or (width is not None and width != vectors_kp.shape[1:]):
        raise ValueError(f"expected models (K, P) and own (P,), got {vectors_kp.shape} and {width}")
    if own_p is None and not len(vectors_kp):
        raise ValueError("expected at least one model, got none")
    finite_k = np.isfinite(vectors_kp).all(axis=1)
    if not finite_k.all() or (own_p is not None and not np.isfinite(own_p).all()):
        raise ValueError(
            f"rows {np.flatnonzero(~finite_k).tolist()} or the own model hold NaN or Inf; refuse "
            "them before"
        )


def distances(own_p: Vector, peers_kp: Vectors) -> Double:
    """Return ``||x_j - x_i||`` for every peer, (K,)."""
    own = own_p.astype(np.float64)
    return np.array([np.linalg.norm(peer_p - own) for peer_p in peers_kp], dtype=np.float64)


def mean(vectors_kp: Vectors) -> Double:
    """Return the mean of the rows in fp64."""
    return np.asarray(vectors_kp.mean(axis=0, dtype=np.float64))
