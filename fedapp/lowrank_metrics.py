"""Norms, inner products and alignment of low-rank products, without forming any of them.

A product ``W = B A`` is given by its factors ``b_mr`` (m x r) and ``a_rn`` (r x n). Everything is
computed in fp64 from r x r matrices; no m x n matrix is formed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp import lowrank_sums
from fedapp.lowrank_sums import (
    Double,
    Matrix,
    Pair,
    accumulate,
    check_pair,
    check_same_product,
    check_sum,
    stack_left,
    stack_right,
)


def product_norm(b_mr: Matrix, a_rn: Matrix) -> float:
    """Return ``||B A||_F`` as ``||R_B R_A^T||_F`` from two thin QRs.

    Unlike the Gram identity this stays accurate when the terms of the product cancel.
    """
    check_pair(b_mr, a_rn)
    return float(np.linalg.norm(_triangle(_f64(b_mr)) @ _triangle(_f64(a_rn).T).T))


def product_inner(b1_mr: Matrix, a1_rn: Matrix, b2_mq: Matrix, a2_qn: Matrix) -> float:
    """Return ``<B1 A1, B2 A2>_F = sum((B1^T B2) o (A1 A2^T))``; the ranks may differ."""
    check_pair(b1_mr, a1_rn)
    check_pair(b2_mq, a2_qn)
    check_same_product(b1_mr, a1_rn, b2_mq, a2_qn)
    left_rq, right_rq = _f64(b1_mr).T @ _f64(b2_mq), _f64(a1_rn) @ _f64(a2_qn).T
    return float(np.sum(left_rq * right_rq))


def product_distance(b1_mr: Matrix, a1_rn: Matrix, b2_mq: Matrix, a2_qn: Matrix) -> float:
    """Return ``||B1 A1 - B2 A2||_F``, accurate however close the two products are.

    The textbook identity ``||X||^2 + ||Y||^2 - 2<X, Y>`` cancels to 0 in fp32 when X ~ Y. Here the
    difference is itself written as a low-rank product, see `increment`, whose norm is taken by
    `product_norm`.
    """
    return product_norm(*increment(_f64(b1_mr), _f64(a1_rn), _f64(b2_mq), _f64(a2_qn)))


def increment(
    b_mr: Matrix, a_rn: Matrix, b_ref_mq: Matrix, a_ref_qn: Matrix
) -> tuple[Matrix, Matrix]:
    """Return factors of ``B A - B_ref A_ref``, of rank at most 2 r.

    With equal ranks ``B A - P Q = (B - P) A + P (A - Q)``, whose two terms are both small when the
    factors are close; otherwise ``[B, -P] [A; Q]``.

    Returns
    -------
    b_m2r : ndarray, shape (m, r + q)
    a_2rn : ndarray, shape (r + q, n)
        fp32 if every input is.
    """
    check_pair(b_mr, a_rn)
    check_pair(b_ref_mq, a_ref_qn)
    check_same_product(b_mr, a_rn, b_ref_mq, a_ref_qn)
    if b_mr.shape == b_ref_mq.shape:
        return np.hstack([b_mr - b_ref_mq, b_ref_mq]), np.vstack([a_rn, a_rn - a_ref_qn])
    return np.hstack([b_mr, -b_ref_mq]), np.vstack([a_rn, a_ref_qn])


def sum_norm(pairs: Sequence[Pair], weights: Sequence[float]) -> float:
    """Return ``||sum_k w_k B_k A_k||_F``, accurate when the terms cancel.

    Two thin QRs of the stacked factors; when the stacked rank reaches the matrix size, the sum is
    formed a few rows at a time instead. Memory stays below one m x n matrix either way.
    """
    m, n, stacked_rank = check_sum(pairs, weights)
    if 4 * stacked_rank <= min(m, n):
        left_rr = _triangle(stack_left(pairs, weights, stacked_rank))
        return float(np.linalg.norm(left_rr @ _triangle(stack_right(pairs, stacked_rank)).T))
    height = max(1, lowrank_sums.BLOCK_NUMBERS // n)
    squares = 0.0
    for start in range(0, m, height):
        rows = slice(start, start + height)
        squares += float(np.sum(np.square(accumulate(pairs, weights, rows))))
    return float(np.sqrt(squares))


def inner_products(pairs: Sequence[Pair]) -> Double:
    """Return the K x K matrix of ``<B_i A_i, B_j A_j>_F``, from Grams of the factors.

    Sums of it over the layers of a model give the model's inner products.
    """
    check_sum(pairs, [1.0] * len(pairs))
    result = np.empty((len(pairs), len(pairs)))
    for i, (b_i, a_i) in enumerate(pairs):
        b_rm, a_rn = _f64(b_i).T, _f64(a_i)
        for j, (b_j, a_j) in enumerate(pairs[: i + 1]):
            result[i, j] = result[j, i] = np.sum((b_rm @ _f64(b_j)) * (a_rn @ _f64(a_j).T))
    return result


def cancellation_ratio(pairs: Sequence[Pair], weights: Sequence[float]) -> float:
    """Return ``||sum_k w_k W_k||_F / sum_k |w_k| ||W_k||_F``: 1 without cancellation, 0 if total.

    Given cumulative products it is the published ratio; given increments since the round's start
    (`increment`) it speaks of the round alone. 0.0 when every product is zero.
    """
    total = sum_norm(pairs, weights)
    parts = sum(
        abs(weight) * product_norm(*pair) for pair, weight in zip(pairs, weights, strict=True)
    )
    return min(1.0, total / parts) if parts > 0 else 0.0


def client_global_cosines(pairs: Sequence[Pair], weights: Sequence[float]) -> Double:
    """Return, for every client, the cosine between its product and the weighted sum; 0.0 if
    either is zero."""
    with_sum = inner_products(pairs) @ np.asarray(weights, dtype=np.float64)
    norms = _norms(pairs) * sum_norm(pairs, weights)
    return _cosine(with_sum, norms)


def pairwise_cosines(pairs: Sequence[Pair]) -> Double:
    """Return the K x K matrix of cosines between the products; 0.0 where one is zero."""
    norms = _norms(pairs)
    return _cosine(inner_products(pairs), np.outer(norms, norms))


def basis_overlap(b1_mr: Matrix, b2_mr: Matrix, squared: bool = False) -> float:
    """Return how much the column spaces of two factors overlap, from 0 to 1.

    With orthonormal bases Q1, Q2 it is ``||Q1^T Q2||_F / sqrt(r)``, as the released code of
    Subspace-Reg computes, or with ``squared`` ``||Q1^T Q2||_F^2 / r``, as its paper defines. r is
    the larger dimension of the two spaces; a zero factor spans nothing and overlaps with nothing.
    """
    q1, q2 = _range(b1_mr), _range(b2_mr)
    dimension = max(q1.shape[1], q2.shape[1])
    if dimension == 0:
        return 0.0
    share = min(1.0, float(np.sum(np.square(q1.T @ q2))) / dimension)
    return share if squared else float(np.sqrt(share))


def _norms(pairs: Sequence[Pair]) -> Double:
    return np.array([product_norm(*pair) for pair in pairs])


def _cosine(inner: Double, norms: Double) -> Double:
    cosine = np.divide(inner, norms, out=np.zeros_like(inner), where=norms > 0)
    return np.clip(cosine, -1.0, 1.0)


def _range(b_mr: Matrix) -> Double:
    """Orthonormal basis of the column space, to the precision of the input's own format."""
    u, s, _ = np.linalg.svd(_f64(b_mr), full_matrices=False)
    resolution = np.finfo(b_mr.dtype).eps if np.issubdtype(b_mr.dtype, np.floating) else 0.0
    return u[:, s > resolution * s[0]] if s.size else u


def _triangle(tall: Double) -> Double:
    triangle: Double = np.linalg.qr(tall, mode="r")  # type: ignore[assignment]
    return triangle


def _f64(array: Matrix) -> Double:
    return np.asarray(array, dtype=np.float64)
