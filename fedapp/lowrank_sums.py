"""A weighted sum of low-rank products ``S = sum_k w_k B_k A_k``: stacked, in chunks, as operator.

Everything is converted to fp64 on the way, a few clients at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Double = NDArray[np.float64]
Pair = tuple[Matrix, Matrix]  # (b_mr, a_rn)

BLOCK_NUMBERS = 2**16  # numbers in one temporary block: 512 KiB in fp64
_DOUBLE = np.dtype(np.float64)


def check_sum(pairs: Sequence[Pair], weights: Sequence[float]) -> tuple[int, int, int]:
    """Return (m, n, stacked rank) of a weighted sum.

    Raises
    ------
    ValueError
        If there is no pair, the numbers of pairs and weights differ, or shapes do not match.
    """
    if not pairs or len(pairs) != len(weights):
        raise ValueError(
            f"expected as many weights as pairs and at least one, got {len(pairs)} pairs and "
            f"{len(weights)} weights"
        )
    for b_mr, a_rn in pairs:
        check_pair(b_mr, a_rn)
        check_same_product(*pairs[0], b_mr, a_rn)
    return pairs[0][0].shape[0], pairs[0][1].shape[1], sum(a_rn.shape[0] for _, a_rn in pairs)


def stack_left(pairs: Sequence[Pair], weights: Sequence[float], columns: int) -> Double:
    """Return fp64 ``[w_1 B_1, w_2 B_2, ...]`` (m x columns), zero beyond the stacked rank."""
    left, start = np.zeros((pairs[0][0].shape[0], columns)), 0
    for (b_mr, _), weight in zip(pairs, weights, strict=True):
        stop = start + b_mr.shape[1]
        np.multiply(b_mr, weight, out=left[:, start:stop], dtype=_DOUBLE)
        start = stop
    return left


def stack_right(pairs: Sequence[Pair], columns: int) -> Double:
    """Return fp64 ``[A_1^T, A_2^T, ...]`` (n x columns), zero beyond the stacked rank."""
    right, start = np.zeros((pairs[0][1].shape[1], columns)), 0
    for _, a_rn in pairs:
        stop = start + a_rn.shape[0]
        right[:, start:stop] = a_rn.T
        start = stop
    return right


def chunks(
    pairs: Sequence[Pair], weights: Sequence[float], rows: slice = slice(None)
) -> Iterator[tuple[Double, Double]]:
    """Yield fp64 ``[w_i B_i, ...]`` (these rows) and ``[A_i; ...]`` for a few clients at a time."""
    largest = max(b_mr[rows].size + a_rn.size for b_mr, a_rn in pairs)
    count = max(1, BLOCK_NUMBERS // largest)
    for start in range(0, len(pairs), count):
        few = range(start, min(start + count, len(pairs)))
        left_mc = np.hstack(
            [np.multiply(pairs[k][0][rows], weights[k], dtype=_DOUBLE) for k in few]
        )
        yield left_mc, np.concatenate([pairs[k][1] for k in few], dtype=_DOUBLE)


def accumulate(
    pairs: Sequence[Pair], weights: Sequence[float], rows: slice = slice(None)
) -> Double:
    """Return these rows of the dense ``sum_k w_k B_k A_k`` in fp64, a few clients at a time."""
    m, n, _ = check_sum(pairs, weights)
    total = np.zeros((len(range(m)[rows]), n))
    for left_mc, right_cn in chunks(pairs, weights, rows):
        total += left_mc @ right_cn
    return total


def apply(pairs: Sequence[Pair], weights: Sequence[float], x_nw: Double) -> Double:
    """Return ``S x`` without forming S."""
    result = np.zeros((pairs[0][0].shape[0], x_nw.shape[1]))
    for left_mc, right_cn in chunks(pairs, weights):
        result += left_mc @ (right_cn @ x_nw)
    return result


def apply_transposed(pairs: Sequence[Pair], weights: Sequence[float], x_mw: Double) -> Double:
    """Return ``S^T x`` without forming S."""
    result = np.zeros((pairs[0][1].shape[1], x_mw.shape[1]))
    for left_mc, right_cn in chunks(pairs, weights):
        result += right_cn.T @ (left_mc.T @ x_mw)
    return result


def check_pair(b_mr: Matrix, a_rn: Matrix) -> None:
    """Raise ValueError unless the factors have a product."""
    if b_mr.ndim != 2 or a_rn.ndim != 2 or b_mr.shape[1] != a_rn.shape[0]:
        raise ValueError(
            f"B (m x r) and A (r x n) must share r, got shapes {b_mr.shape} and {a_rn.shape}"
        )


def check_same_product(b1: Matrix, a1: Matrix, b2: Matrix, a2: Matrix) -> None:
    """Raise ValueError unless both products have one shape."""
    if b1.shape[0] != b2.shape[0] or a1.shape[1] != a2.shape[1]:
        raise ValueError(
            "the products must have one shape, got "
            f"{(b1.shape[0], a1.shape[1])} and {(b2.shape[0], a2.shape[1])}"
        )
