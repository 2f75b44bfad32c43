"""Sums of low-rank products kept as one pair of a larger rank (numpy, pure).

``sum_k w_k s_k B_k A_k = [w_1 s_1 B_1, w_2 s_2 B_2, ...] [A_1; A_2; ...]``: exact, and small while
its rank is. Where that would grow without end it is cut to the best of a smaller rank, and the
error is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.adapter import Adapter, LoraPair
from fedapp.lowrank import product_norm


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

    Up to that rank the pair is returned as it is. Beyond, ``W = s B A ~ (W V) V^T`` with the
    leading right singular vectors V: B = W V, A = V^T orthonormal, scaling 1. They are eigenvectors
    of a Gram of the size of the stacked rank, in a third of the time of an SVD: of singular values
    below 1e-8 of the largest neither the order nor the error is right, and both then do not matter.

    Returns
    -------
    pair : LoraPair
    error : float
        ``||W - W_r||_F / ||W||_F`` before the factors are rounded to fp32; 0 for a zero product.
    """
    short, lost, total = _cut(pair, rank)
    return short, float(np.sqrt(lost / total)) if lost else 0.0


def recompress_adapter(adapter: Adapter, rank: int) -> tuple[Adapter, float]:
    """Apply `recompress` to every pair; the error is that of all products together.

    Parameters
    ----------
    adapter : Adapter
    rank : int
        0: no limit but the size of the matrices.
    """
    cut = {
        name: _cut(pair, rank or min(pair.b_mr.shape[0], pair.a_rn.shape[1]))
        for name, pair in adapter.pairs.items()
    }
    short = Adapter({name: pair for name, (pair, _, _) in cut.items()}, adapter.tensors)
    lost = sum(of_pair for _, of_pair, _ in cut.values())
    if not lost:
        return short, 0.0
    total = sum(
        # What was not cut was not measured either.
        of_pair or (pair.scaling * product_norm(pair.b_mr, pair.a_rn)) ** 2
        for pair, _, of_pair in cut.values()
    )
    return short, float(np.sqrt(lost / total))


def _cut(pair: LoraPair, rank: int) -> tuple[LoraPair, float, float]:
    """Return the pair, or its best approximation, and the squared norms of what is lost and of W.

    The last is 0 where nothing had to be cut.
    """
    rank = min(rank, pair.b_mr.shape[0], pair.a_rn.shape[1])
    if pair.rank <= rank:
        return pair, 0.0, 0.0
    b_mk = np.multiply(pair.b_mr, pair.scaling, dtype=np.float64)
    q_nk, r_kk = np.linalg.qr(pair.a_rn.T.astype(np.float64))
    core_kk = np.linalg.qr(b_mk, mode="r") @ r_kk.T
    squares_k, vectors_kk = np.linalg.eigh(core_kk.T @ core_kk)
    leading_kr = vectors_kk[:, ::-1][:, :rank]
    b_mr, a_rn = b_mk @ (r_kk.T @ leading_kr), (q_nk @ leading_kr).T
    lost, total = squares_k[:-rank].clip(min=0).sum(), squares_k.clip(min=0).sum()
    return LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), 1.0), lost, total


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
