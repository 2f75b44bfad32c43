"""Sums of low-rank products kept as one pair of a larger rank (numpy, pure).

``sum_k w_k s_k B_k A_k = [w_1 s_1 B_1, w_2 s_2 B_2, ...] [A_1; A_2; ...]``: exact, and small while
its rank is. Where that would grow without end it is cut by SVD, and the error is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.adapter import Adapter, LoraPair
from fedapp.lowrank import factorise, sum_norm, weighted_sum_svd


def stack_pairs(pairs: Sequence[LoraPair], weights: Sequence[float]) -> LoraPair:
    """Return ``sum_k w_k s_k B_k A_k`` as one pair of scaling 1.

    Pairs with one and the same A share its rows: ``B`` is their weighted sum then. A pair whose B
    is zero adds nothing and no rows, unless all are zero.

    Parameters
    ----------
    pairs : sequence of LoraPair
        Of one product's shape; ranks may differ.
    weights : sequence of float
        Used as they are, not normalised.
    """
    groups: list[tuple[LoraPair, np.ndarray]] = []  # a pair with its A, and the fp64 sum of B
    for pair, weight in zip(pairs, weights, strict=True):
        if not pair.b_mr.any():
            continue
        b_mr = np.multiply(pair.b_mr, weight * pair.scaling, dtype=np.float64)
        for first, total_mr in groups:
            if first.a_rn is pair.a_rn or np.array_equal(first.a_rn, pair.a_rn):
                total_mr += b_mr
                break
        else:
            groups.append((pair, b_mr))
    if not groups:
        return LoraPair(np.zeros_like(pairs[0].b_mr), pairs[0].a_rn, 1.0)
    b_mq = np.hstack([b_mr for _, b_mr in groups]).astype(np.float32)
    return LoraPair(b_mq, np.concatenate([pair.a_rn for pair, _ in groups]), 1.0)


def stack_adapters(adapters: Sequence[Adapter], weights: Sequence[float]) -> Adapter:
    """Return `stack_pairs` of every pair; tensors are left out."""
    return Adapter(
        {
            name: stack_pairs([adapter.pairs[name] for adapter in adapters], weights)
            for name in adapters[0].pairs
        }
    )


def recompress(pair: LoraPair, rank: int) -> tuple[LoraPair, float]:
    """Return the best approximation of a product by one of at most ``rank``, and its error.

    Up to that rank the pair is returned as it is. Beyond, ``s B A ~ U S V^T``: B = U S, A = V^T,
    scaling 1.

    Returns
    -------
    pair : LoraPair
    error : float
        ``||W - W_r||_F / ||W||_F``, measured on what is returned; 0 for a zero product.
    """
    rank = min(rank, pair.b_mr.shape[0], pair.a_rn.shape[1])
    if pair.rank <= rank:
        return pair, 0.0
    whole = (pair.b_mr, pair.a_rn)
    b_mr, a_rn = factorise(*weighted_sum_svd([whole], [pair.scaling], rank), "orthonormal-a")
    short = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), 1.0)
    norm = sum_norm([whole], [pair.scaling])
    if norm == 0:
        return short, 0.0
    left = sum_norm([whole, (short.b_mr, short.a_rn)], [pair.scaling, -1.0])
    return short, left / norm


def recompress_adapter(adapter: Adapter, rank: int) -> tuple[Adapter, float]:
    """Apply `recompress` to every pair; the error is that of all products together.

    Parameters
    ----------
    adapter : Adapter
    rank : int
        0: no limit but the size of the matrices.
    """
    pairs, lost, total = {}, 0.0, 0.0
    for name, pair in adapter.pairs.items():
        limit = rank or min(pair.b_mr.shape[0], pair.a_rn.shape[1])
        pairs[name], error = recompress(pair, limit)
        square = sum_norm([(pair.b_mr, pair.a_rn)], [pair.scaling]) ** 2
        lost, total = lost + error**2 * square, total + square
    return Adapter(pairs, adapter.tensors), float(np.sqrt(lost / total)) if total else 0.0


def of_rank(adapter: Adapter, rank: int, scaling: float) -> Adapter:
    """Return the same products as pairs of exactly this rank and scaling, filled up with zeros.

    Parameters
    ----------
    adapter : Adapter
        Pairs of at most ``rank``.
    rank : int
    scaling : float
        It is taken out of B.
    """
    pairs = {}
    for name, pair in adapter.pairs.items():
        missing = rank - pair.rank
        b_mr = pair.b_mr * np.float32(pair.scaling / scaling)
        pairs[name] = LoraPair(
            np.pad(b_mr, ((0, 0), (0, missing))),
            np.pad(pair.a_rn, ((0, missing), (0, 0))),
            scaling,
        )
    return Adapter(pairs, adapter.tensors)
