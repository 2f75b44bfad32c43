"""Leading singular triplets of a sum of many low-rank products, in little memory.

Block Lanczos on the sum as an operator: ``S x = sum_k w_k B_k (A_k x)``. Neither the sum nor a
copy of all factors is formed, and the result is certified by its residual.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.lowrank_sums import Double, Pair, apply, apply_transposed, check_sum

OVERSAMPLING = 8  # extra columns in a block: the next singular values need not be well separated
BLOCKS = 4  # blocks in the basis before it is compressed to one
TOLERANCE = 1e-10  # largest residual ||S^T u - s v||, relative to the largest singular value
SCHEDULE = (10**-2.5, 10**-5.0, 10**-7.5, TOLERANCE)
"""Residual that each cycle must reach. Who falls behind has a flat spectrum: give up at once."""


def basis_columns(rank: int) -> int:
    """Columns of the basis: the memory is two such fp64 matrices of m and n rows, and copies."""
    return BLOCKS * (rank + OVERSAMPLING)


def leading_svd(
    pairs: Sequence[Pair], weights: Sequence[float], rank: int
) -> tuple[Double, Double, Double] | None:
    """Return ``u_mr, s_r, vt_rn`` of the sum, or None if that does not converge quickly.

    The start is random but fixed, so that the result depends on nothing but the arguments.
    ``basis_columns(rank)`` must not exceed min(m, n).

    References
    ----------
    Golub, Luk, Overton, "A block Lanczos method for computing the singular values and
    corresponding singular vectors of a matrix", 1981; with full reorthogonalisation and restarts.
    """
    m, n, _ = check_sum(pairs, weights)
    width, columns = rank + OVERSAMPLING, basis_columns(rank)
    v_nc, w_mc = np.empty((n, columns)), np.empty((m, columns))  # a basis, and S times it
    v_nc[:, :width] = np.linalg.qr(np.random.default_rng(0).standard_normal((n, width)))[0]
    w_mc[:, :width] = apply(pairs, weights, v_nc[:, :width])
    for allowed in SCHEDULE:
        for stop in range(width, columns, width):
            known, block = v_nc[:, :stop], slice(stop, stop + width)
            direction = apply_transposed(pairs, weights, w_mc[:, stop - width : stop])
            v_nc[:, block] = _orthonormalise(direction, known)
            w_mc[:, block] = apply(pairs, weights, v_nc[:, block])
        q_mc, r_cc = np.linalg.qr(w_mc)
        u_cc, s_c, yt_cc = np.linalg.svd(r_cc)
        u_mw, s_w, v_nw = q_mc @ u_cc[:, :width], s_c[:width], v_nc @ yt_cc[:width].T
        del q_mc
        v_nc[:, :width], w_mc[:, :width] = v_nw, u_mw * s_w
        u_mr, s_r, v_nr = u_mw[:, :rank], s_w[:rank], v_nw[:, :rank]
        residual_nr = apply_transposed(pairs, weights, u_mr) - v_nr * s_r
        residual = np.linalg.norm(residual_nr, axis=0).max()
        if residual <= TOLERANCE * s_r[0]:
            return u_mr, s_r, v_nr.T
        if residual > allowed * s_r[0]:
            return None
    return None


def _orthonormalise(block_nw: Double, known_nc: Double) -> Double:
    """Orthonormal columns orthogonal to ``known``, also when the block lies within its span."""
    for _ in range(2):  # the second pass removes what rounding left after the first
        block_nw = block_nw - known_nc @ (known_nc.T @ block_nw)
        block_nw = np.linalg.qr(block_nw)[0]
    block_nw = block_nw - known_nc @ (known_nc.T @ block_nw)
    result: Double = np.linalg.qr(block_nw)[0]
    return result
