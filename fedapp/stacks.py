"""Sums of low-rank products kept as one pair of a larger rank (numpy, pure).

``sum_k w_k s_k B_k A_k = [w_1 s_1 B_1, w_2 s_2 B_2, ...] [A_1; A_2; ...]``: exact, and small while
its rank is. Where that would grow without end it is cut to the best of a smaller rank, and the
error is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.lowrank import product_norm

Double = NDArray[np.float64]

_ORTHONORMAL = 1e-6
"""Rows in fp32 whose Gram errs by no more are orthonormal."""
_INSIDE = 1e-6
"""A row that is less than this share outside the span of others is inside."""


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
    groups: list[list[tuple[LoraPair, float]]] = []  # pairs of one A, with their factors
    for pair, weight in zip(pairs, weights, strict=True):
        if not pair.b_mr.any():
            continue
        part = pair, weight * pair.scaling
        for group in groups:
            a_rn = group[0][0].a_rn
            if a_rn is pair.a_rn or np.array_equal(a_rn, pair.a_rn):
                group.append(part)
                break
        else:
            groups.append([part])
    if not groups:
        return LoraPair(np.zeros_like(pairs[0].b_mr), pairs[0].a_rn, 1.0)
    b_mq = np.hstack([_sum_of_b(group) for group in groups])
    return LoraPair(b_mq, np.concatenate([group[0][0].a_rn for group in groups]), 1.0)


def _sum_of_b(group: Sequence[tuple[LoraPair, float]]) -> Array:
    """Return ``sum_k f_k B_k``, in fp64 and rounded at the end."""
    if len(group) == 1 and group[0][1] == 1.0:
        return group[0][0].b_mr
    total_mr = np.zeros(group[0][0].b_mr.shape)
    for pair, factor in group:
        total_mr += np.multiply(pair.b_mr, factor, dtype=np.float64)
    return total_mr.astype(np.float32)


def stack_adapters(adapters: Sequence[Adapter], weights: Sequence[float]) -> Adapter:
    """Return `stack_pairs` of every pair; tensors are left out."""
    return Adapter(
        {
            name: stack_pairs([adapter.pairs[name] for adapter in adapters], weights)
            for name in adapters[0].pairs
        }
    )


@dataclass(frozen=True)
class Recompressed:
    """A sum of products at a rank cap.

    Attributes
    ----------
    adapter : Adapter
    norm : float
        Frobenius norm of all its products together.
    error : float
        ``||W - W_r||_F / ||W||_F`` over all products together, before the factors are rounded to
        fp32; 0 where nothing had to be cut.
    """

    adapter: Adapter
    norm: float
    error: float


def recompress(adapter: Adapter, rank: int) -> Recompressed:
    """Replace every product by the best approximation of at most ``rank``.

    Up to that rank a pair stays as it is. Beyond, ``W = s B A ~ (W V) V^T`` with the leading right
    singular vectors V: B = W V, A = V^T orthonormal, scaling 1. They are eigenvectors of a Gram of
    the size of the stacked rank, in a third of the time of an SVD: of singular values below 1e-8 of
    the largest neither the order nor the error is right, and both then do not matter.

    Parameters
    ----------
    adapter : Adapter
    rank : int
        0: no limit but the size of the matrices.
    """
    pairs, kept, lost = {}, 0.0, 0.0
    for name, pair in adapter.pairs.items():
        largest = min(pair.b_mr.shape[0], pair.a_rn.shape[1])
        pairs[name], of_kept, of_lost = _cut(pair, min(rank or largest, largest))
        kept, lost = kept + of_kept, lost + of_lost
    error = float(np.sqrt(lost / (kept + lost))) if lost else 0.0
    return Recompressed(Adapter(pairs, adapter.tensors), float(np.sqrt(kept)), error)


def _cut(pair: LoraPair, rank: int) -> tuple[LoraPair, float, float]:
    """Return the pair or its best approximation, and the squared norms of it and of what is lost"""
    if pair.rank <= rank:
        return pair, (pair.scaling * product_norm(pair.b_mr, pair.a_rn)) ** 2, 0.0
    q_nk, r_kk = _orthonormal(pair.a_rn)
    core_mk = np.multiply(pair.b_mr, pair.scaling, dtype=np.float64) @ r_kk.T
    squares_k, vectors_kk = np.linalg.eigh(core_mk.T @ core_mk)
    leading_kr = vectors_kk[:, ::-1][:, :rank]
    b_mr, a_rn = core_mk @ leading_kr, (q_nk @ leading_kr).T
    short = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), 1.0)
    squares_k = squares_k.clip(min=0)
    return short, float(squares_k[-rank:].sum()), float(squares_k[:-rank].sum())


def _orthonormal(a_kn: Array) -> tuple[Double, Double]:
    """Return Q and R with ``A^T = Q R``, Q of orthonormal columns.

    The leading rows of what was folded before are orthonormal to fp32's precision already. They
    stay as they are and only the others are made orthogonal to them, in a third of the time of a
    QR of all.
    """
    rows_kn = a_kn.astype(np.float64)
    gram_kk = rows_kn @ rows_kn.T
    odd_k = np.abs(np.tril(gram_kk) - np.eye(len(rows_kn))).max(axis=1) > _ORTHONORMAL
    done = int(odd_k.argmax()) if odd_k.any() else len(rows_kn)
    if done and len(rows_kn) <= rows_kn.shape[1]:
        p_nd, rest_ne, inside_de = rows_kn[:done].T, rows_kn[done:].T, gram_kk[:done, done:]
        rest_ne = rest_ne - p_nd @ inside_de
        again_de = p_nd.T @ rest_ne  # what rounding has left
        q_ne, r_ee = np.linalg.qr(rest_ne - p_nd @ again_de)
        # A row inside the span of the others leaves noise, which is orthogonal to nothing.
        if np.abs(r_ee.diagonal()).min(initial=1.0) > _INSIDE * np.sqrt(gram_kk.diagonal().max()):
            zeros_ed = np.zeros((len(r_ee), done))
            r_kk = np.block([[np.eye(done), inside_de + again_de], [zeros_ed, r_ee]])
            return np.hstack([p_nd, q_ne]), r_kk
    q_nk, r_kk = np.linalg.qr(rows_kn.T)
    return q_nk, r_kk


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
