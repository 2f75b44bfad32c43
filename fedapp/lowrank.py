"""Exact merges of low-rank products: weighted sums, their SVD, and new factors from it.

fp64 inside; fp32 out where every input is fp32. Norms, distances and alignment are in
`fedapp.lowrank_metrics` and are re-exported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedapp import lowrank_krylov
from fedapp.lowrank_metrics import (
    basis_overlap,
    cancellation_ratio,
    client_global_cosines,
    increment,
    inner_products,
    pairwise_cosines,
    product_distance,
    product_inner,
    product_norm,
    sum_norm,
)
from fedapp.lowrank_sums import (
    Double,
    Matrix,
    Pair,
    accumulate,
    apply,
    check_sum,
    stack_left,
    stack_right,
)

__all__ = [
    "Factorisation",
    "Pair",
    "basis_overlap",
    "cancellation_ratio",
    "client_global_cosines",
    "factorise",
    "increment",
    "inner_products",
    "pairwise_cosines",
    "product_distance",
    "product_inner",
    "product_norm",
    "sum_norm",
    "weighted_sum_svd",
]

Factorisation = Literal["symmetric", "orthonormal-a", "orthonormal-b"]


def weighted_sum_svd(
    pairs: Sequence[Pair], weights: Sequence[float], rank: int
) -> tuple[Matrix, Matrix, Matrix]:
    """Return the best rank-``rank`` approximation of ``sum_k w_k B_k A_k`` as its truncated SVD.

    With ``L = [w_1 B_1, ...] = Q_L R_L`` and ``[A_1^T, ...] = Q_A R_A`` the SVD of the small core
    ``R_L R_A^T`` gives that of the sum exactly, in O((m + n) R^2 + R^3) for a stacked rank R.

    For many clients (R above 8 (rank + 8)) the leading triplets are first sought iteratively, see
    `fedapp.lowrank_krylov`: certified to a residual of 1e-10 ||W||_2, in memory independent of K
    and without an m x n matrix. If that fails, because the singular values hardly decay, the exact
    way is taken: by QR, or from the accumulated m x n sum once R reaches min(m, n).

    Parameters
    ----------
    pairs : sequence of (b_mr, a_rn)
        Ranks may differ between pairs.
    weights : sequence of float
        Used as they are, not normalised.
    rank : int
        At most min(m, n). Beyond the sum's own rank the singular values are 0 and the vectors
        still orthonormal.

    Returns
    -------
    u_mr : ndarray, shape (m, rank)
        Orthonormal columns; the entry of largest magnitude in each is positive.
    s_r : ndarray, shape (rank,)
        Descending.
    vt_rn : ndarray, shape (rank, n)
        Orthonormal rows.

    Raises
    ------
    ValueError
        If shapes or counts do not match, or ``rank`` is not within 1..min(m, n).
    """
    m, n, stacked_rank = check_sum(pairs, weights)
    if not 1 <= rank <= min(m, n):
        raise ValueError(f"rank must be within 1..{min(m, n)}, got {rank}")
    many = 2 * lowrank_krylov.basis_columns(rank) < min(stacked_rank, m, n)
    triplets = lowrank_krylov.leading_svd(pairs, weights, rank) if many else None
    if triplets is None and max(stacked_rank, rank) < min(m, n):
        triplets = _svd_by_qr(pairs, weights, rank)
    elif triplets is None:
        total_mn = accumulate(pairs, weights)
        triplets = _svd_by_gram(total_mn, rank) if many else _truncate(*_svd(total_mn), rank)
    u_mr, s_r, vt_rn = triplets
    u_mr, vt_rn = _fix_signs(u_mr, vt_rn)
    dtype = _output_dtype([array for pair in pairs for array in pair])
    return u_mr.astype(dtype), s_r.astype(dtype), vt_rn.astype(dtype)


def factorise(
    u_mr: Matrix,
    s_r: Matrix,
    vt_rn: Matrix,
    kind: Factorisation = "symmetric",
    norm_ratio: float = 1.0,
    split_norm: bool = False,
) -> tuple[Matrix, Matrix]:
    """Return ``(b_mr, a_rn)`` with ``B A = norm_ratio * U S V^T``.

    Parameters
    ----------
    u_mr, s_r, vt_rn
        As from `weighted_sum_svd`.
    kind : {"symmetric", "orthonormal-a", "orthonormal-b"}
        ``B = U sqrt(S), A = sqrt(S) V^T``; ``B = U S, A = V^T`` (FlexLoRA, FedSVD); or
        ``B = U, A = S V^T`` (Subspace-Reg).
    norm_ratio : float
        ``||W||_F / ||W_r||_F`` restores the norm lost by truncation. It goes where S goes, so that
        an orthonormal factor stays orthonormal.
    split_norm : bool
        Put ``sqrt(norm_ratio)`` on both factors instead, as the released code of Subspace-Reg does.
    """
    u, s, vt = (np.asarray(x, dtype=np.float64) for x in (u_mr, s_r, vt_rn))
    if kind == "symmetric":
        left = right = np.sqrt(s)
        split_norm = True
    elif kind == "orthonormal-a":
        left, right = s, np.ones_like(s)
    elif kind == "orthonormal-b":
        left, right = np.ones_like(s), s
    else:
        raise ValueError(f"kind must be symmetric, orthonormal-a or orthonormal-b, got {kind!r}")
    if split_norm:
        left, right = left * np.sqrt(norm_ratio), right * np.sqrt(norm_ratio)
    elif kind == "orthonormal-a":
        left = left * norm_ratio
    else:
        right = right * norm_ratio
    dtype = _output_dtype([u_mr, s_r, vt_rn])
    return (u * left).astype(dtype), (right[:, None] * vt).astype(dtype)


def _svd_by_qr(
    pairs: Sequence[Pair], weights: Sequence[float], rank: int
) -> tuple[Double, Double, Double]:
    columns = max(rank, sum(a_rn.shape[0] for _, a_rn in pairs))
    r_left = np.linalg.qr(stack_left(pairs, weights, columns), mode="r")
    # QR completes zero columns to an orthonormal basis, so a rank beyond the sum's is well defined.
    q_right, r_right = np.linalg.qr(stack_right(pairs, columns))
    _, _, vt = np.linalg.svd(r_left @ r_right.T)
    v_nr = q_right @ vt[:rank].T
    # U S = S V: the left basis, as large as the right one, is never formed.
    return _rayleigh_ritz(apply(pairs, weights, v_nr), v_nr)


def _svd_by_gram(total_mn: Double, rank: int) -> tuple[Double, Double, Double]:
    """Eigenvectors of the smaller Gram, in half the time of an SVD and accurate to 1e-8; the final
    Rayleigh-Ritz step makes the values exact."""
    if total_mn.shape[0] > total_mn.shape[1]:
        u, s, vt = _svd_by_gram(total_mn.T, rank)
        return vt.T, s, u.T
    _, vectors = np.linalg.eigh(total_mn @ total_mn.T)
    leading = vectors[:, -(rank + lowrank_krylov.OVERSAMPLING) :]
    v_nw, _ = np.linalg.qr(total_mn.T @ leading)
    return _truncate(*_rayleigh_ritz(total_mn @ v_nw, v_nw), rank)


def _rayleigh_ritz(w_mr: Double, v_nr: Double) -> tuple[Double, Double, Double]:
    """SVD of a matrix W restricted to the span of orthonormal ``v``, given ``W v``."""
    u_mr, s_r, yt_rr = _svd(w_mr)
    return u_mr, s_r, yt_rr @ v_nr.T


def _svd(matrix: Double) -> tuple[Double, Double, Double]:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return u, s, vt


def _truncate(u: Double, s: Double, vt: Double, rank: int) -> tuple[Double, Double, Double]:
    return u[:, :rank], s[:rank], vt[:rank]


def _fix_signs(u_mr: Double, vt_rn: Double) -> tuple[Double, Double]:
    largest = np.abs(u_mr).argmax(axis=0)
    signs = np.where(u_mr[largest, np.arange(u_mr.shape[1])] < 0, -1.0, 1.0)
    return u_mr * signs, vt_rn * signs[:, None]


def _output_dtype(arrays: Sequence[NDArray[Any]]) -> type[np.floating[Any]]:
    return np.float32 if all(array.dtype == np.float32 for array in arrays) else np.float64
