"""How alike two models see the same records: agreement of their last-layer tangent kernels (pure).

For a last layer ``z = W phi(x) + b`` with C outputs the Jacobian in ``(W, b)`` is ``[phi; 1]^T``
once for every output, so that nothing but the penultimate features enters the kernel:

    K_ab = (1/C) <J(x_a), J(x_b)> = <phi_a, phi_b> + 1
    A(i, j) = <H K_i H, H K_j H>_F / (||H K_i H||_F ||H K_j H||_F),    H = I - 11^T / n

One forward pass gives the features; no derivative is taken. Centring removes the 1 of the bias, and
A is then the linear CKA of the features. It follows that A is exactly 1, blind, if a peer's last
layer is flipped, permuted, scaled or drawn anew, and if its hidden neurons are permuted: a score of
1 says that features agree, not that a model is sound.

References
----------
LIGHTYEAR, arXiv 2608.12108. Kornblith et al., Similarity of neural network representations
revisited, 2019. Cortes, Mohri and Rostamizadeh, JMLR 13:795, 2012.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedapp.outputs import MIN_ROWS, softmax

Matrix = NDArray[np.floating[Any]]
Double = NDArray[np.float64]
KernelKind = Literal["logits", "softmax_trace", "softmax_full"]

LARGEST_FULL_KERNEL = 4096
"""Rows x outputs of ``softmax_full``, a kernel of that many rows and columns (128 MiB)."""
_BLOCK_NUMBERS = 2**20  # numbers of features in fp64 at a time: 8 MiB
_INDISTINCT = 1e-9  # of an agreement: far above its rounding in fp64, far below what models differ
_ROOT_PAYS = 3  # n over D from which two D x D products are less than one n x n
_ROUNDING = 8  # units in the last place by which equal features may differ


@dataclass(frozen=True, eq=False)
class Kernel:
    """A centred kernel of Frobenius norm 1, to be compared with many others.

    Attributes
    ----------
    rows : int
        n, the records or positions it is of.
    side : int
        n, or n C of ``softmax_full``: the kernel is side x side.
    root : ndarray, shape (n, D), or None
        ``R`` where the kernel is held as ``R R^T``, which few features make much smaller.
    whole : ndarray, shape (side, side), or None
        The kernel where it is held as it is. Without either it is zero and says nothing.
    """

    rows: int
    side: int
    root: Double | None = None
    whole: Double | None = None

    @property
    def is_informative(self) -> bool:
        """Whether there is anything to compare.

        There is not with fewer than `fedapp.outputs.MIN_ROWS` rows (of two, any two centred
        kernels are equal), features that are the same for every row (up to the rounding of their
        own format) or not finite, or softmax outputs without a gradient.
        """
        return self.root is not None or self.whole is not None

    @cached_property
    def values(self) -> Double:
        """The kernel, shape (side, side)."""
        if self.root is not None:
            return np.asarray(self.root @ self.root.T)
        return np.zeros((self.side, self.side)) if self.whole is None else self.whole


def agreement(features_i: Matrix, features_j: Matrix) -> float:
    """Return the agreement of two models, from their features of the same rows in one order.

    Parameters
    ----------
    features_i, features_j : ndarray, shapes (n, D_i) and (n, D_j)
        What goes into each model's last layer; D may differ.

    Returns
    -------
    float
        In [0, 1], symmetric, 1 up to rotation and scale, all to rounding. 0 where one of the
        kernels is not informative, see `Kernel.is_informative`: what cannot be judged is not
        trusted.

    Raises
    ------
    ValueError
        If the numbers of rows differ or an array is no matrix.

    Notes
    -----
    O(n^2 D). Whoever compares one model with many computes its `kernel` once and uses `alignment`.
    """
    return alignment(kernel(features_i), kernel(features_j))


def kernel(
    features_nd: Matrix,
    logits_nc: Matrix | None = None,
    *,
    kind: KernelKind = "logits",
    bias: bool = True,
) -> Kernel:
    """Return the centred kernel of one model's last layer, of norm 1.

    With ``G = Phi Phi^T`` (+ 1 with a bias) and ``P_x = diag(p_x) - p_x p_x^T``, the derivative of
    the softmax:

    * ``logits``: ``G``, the trace kernel of the outputs before the softmax (the paper's reading);
    * ``softmax_trace``: ``G_ab tr(P_a P_b)``, the trace kernel of the probabilities;
    * ``softmax_full``: blocks ``G_ab P_a P_b^T``, centred for every output by itself.

    The softmax kernels see a scaled head, and a flipped one if there are more than two classes.
    ``softmax_full`` alone sees permuted classes.

    Parameters
    ----------
    features_nd : ndarray, shape (n, D)
        fp32 or fp64; fp64 inside.
    logits_nc : ndarray, shape (n, C), optional
        For the softmax kernels. One column is the logit of a sigmoid.
    kind : {"logits", "softmax_trace", "softmax_full"}
    bias : bool
        Whether the last layer has one; without effect on ``logits``.

    Raises
    ------
    ValueError
        If shapes do not match, or ``softmax_full`` would exceed `LARGEST_FULL_KERNEL`.
    """
    if features_nd.ndim != 2:
        raise ValueError(f"expected features (n, D), got shape {features_nd.shape}")
    rows = len(features_nd)
    if kind == "logits":
        return _trace_kernel(features_nd)
    logits_nc = _check_logits(logits_nc, rows, kind)
    side = rows * (logits_nc.shape[1] if kind == "softmax_full" else 1)
    if rows < MIN_ROWS or not (np.isfinite(features_nd).all() and np.isfinite(logits_nc).all()):
        return Kernel(rows, side)
    gram_nn = _gram(features_nd, float(bias))
    whole = _weighted(gram_nn, softmax(logits_nc), kind)
    values = _centre(whole, rows)
    eps, energy = float(np.finfo(np.float64).eps), float(np.trace(whole))
    # The trace of P P' is a difference of numbers near 1, so that its rounding is the Gram's.
    largest = float(np.trace(gram_nn)) if kind == "softmax_trace" else energy
    if not np.trace(values) > max(_tolerance(features_nd) * energy, 4 * rows * eps * largest):
        return Kernel(rows, side)
    return Kernel(rows, side, whole=values / np.linalg.norm(values))


def alignment(own: Kernel, peer: Kernel) -> float:
    """Return ``<K_i, K_j>_F`` of two normalised kernels of one kind, in [0, 1].

    O(n^2), or of two that are held as roots, ``||R_i^T R_j||_F^2`` in O(n D_i D_j).
    """
    if (own.rows, own.side) != (peer.rows, peer.side):
        raise ValueError(
            "two kernels of the same rows and kind are needed, got "
            f"{own.side} x {own.side} of {own.rows} rows and "
            f"{peer.side} x {peer.side} of {peer.rows}"
        )
    if not (own.is_informative and peer.is_informative):
        return 0.0
    if own.root is not None and peer.root is not None:
        common = own.root.T @ peer.root
        value = np.vdot(common, common)
    else:
        value = np.vdot(own.values, peer.values)
    return min(max(float(value), 0.0), 1.0)


def calibrated(score: float, null: float) -> float:
    """Return ``(A - A_0) / (1 - A_0)``: 0 for a useless model, 1 for the same features.

    ``A_0``, the null level, is the mean agreement with models known to be useless, on the site's
    own rows: the own model with all signs flipped, and random ones. It depends on the architecture
    (0.3 on a deep net, 0.8 on a shallow one); this threshold does not. 0 if useless models agree
    perfectly, up to rounding, since nothing can be told apart then.
    """
    return (score - null) / (1 - null) if null < 1 - _INDISTINCT else 0.0


def _trace_kernel(features_nd: Matrix) -> Kernel:
    """Return the kernel of the features, centred; beside a small net every call counts."""
    rows, width = features_nd.shape
    scale = _scale(features_nd)
    if rows < MIN_ROWS or not 0 < scale < math.inf:
        return Kernel(rows, rows)
    as_root = _ROOT_PAYS * width <= rows and rows * width <= _BLOCK_NUMBERS
    energy = left = 0.0
    root: Double | None = None
    total: Double | None = None
    for block_nd in _blocks(features_nd, scale):
        energy += float(np.vdot(block_nd, block_nd))
        if not math.isfinite(energy):
            return Kernel(rows, rows)
        # Centred features instead of a centred Gram keep what a large common part rounds away.
        block_nd -= np.add.reduce(block_nd, axis=0) / rows
        left += float(np.vdot(block_nd, block_nd))
        root = block_nd if as_root else None
        part = block_nd.T @ block_nd if as_root else block_nd @ block_nd.T
        total = part if total is None else np.add(total, part, out=total)
    if total is None or not left > _tolerance(features_nd) * energy:
        return Kernel(rows, rows)
    norm = math.sqrt(np.vdot(total, total))
    if root is not None:
        return Kernel(rows, rows, root=np.divide(root, math.sqrt(norm), out=root))
    return Kernel(rows, rows, whole=np.divide(total, norm, out=total))


def _scale(features_nd: Matrix) -> float:
    """Return by what features are divided, so that the fourth powers of finite numbers are finite.

    1 of fp32 and less, of which fp64 holds them as they are; the largest magnitude of fp64.
    """
    if features_nd.dtype.itemsize < 8:
        return 1.0
    return max(float(features_nd.max(initial=0.0)), -float(features_nd.min(initial=0.0)))


def _gram(features_nd: Matrix, one: float) -> Double:
    """Return ``Phi Phi^T + one^2`` over the square of a scale."""
    rows = len(features_nd)
    scale = max(_scale(features_nd), one)
    if scale == 0:
        return np.zeros((rows, rows))
    gram_nn = np.full((rows, rows), (one / scale) ** 2)
    for block_nd in _blocks(features_nd, scale):
        gram_nn += block_nd @ block_nd.T
    return gram_nn


def _blocks(features_nd: Matrix, scale: float) -> Iterator[Double]:
    width = max(1, _BLOCK_NUMBERS // len(features_nd))
    for start in range(0, features_nd.shape[1], width):
        yield np.divide(features_nd[:, start : start + width], scale, dtype=np.float64)


def _weighted(gram_nn: Double, p_nc: Double, kind: KernelKind) -> Double:
    """Return the Gram of the features times what the softmax makes of it."""
    if kind == "softmax_trace":
        # tr(P P') with P = diag(p) - p p^T, without a C x C matrix.
        square_nc, common_nn = p_nc * p_nc, p_nc @ p_nc.T
        mixed_nn = p_nc @ square_nc.T
        trace_nn = common_nn - mixed_nn - mixed_nn.T + common_nn * common_nn
        return gram_nn * trace_nn
    rows, outputs = p_nc.shape
    p_ncc = p_nc[:, :, None] * -p_nc[:, None, :]
    # 1 - p as the sum of the others: of a sure model all digits of the difference are lost.
    np.einsum("ncc->nc", p_ncc)[:] = p_nc * _sums_of_others(p_nc)
    flat_mc = p_ncc.reshape(rows * outputs, outputs)
    flat_mc /= np.abs(flat_mc).max() or 1.0  # whose squares could vanish
    blocks = (flat_mc @ flat_mc.T).reshape(rows, outputs, rows, outputs)
    return (blocks * gram_nn[:, None, :, None]).reshape(rows * outputs, rows * outputs)


def _sums_of_others(p_nc: Double) -> Double:
    """Return for every entry the sum of the other entries of its row, nothing subtracted."""
    before, after = np.zeros_like(p_nc), np.zeros_like(p_nc)
    before[:, 1:] = np.cumsum(p_nc[:, :-1], axis=1)
    after[:, :-1] = np.cumsum(p_nc[:, :0:-1], axis=1)[:, ::-1]
    return np.asarray(before + after)


def _centre(values: Double, rows: int) -> Double:
    """Return ``(H (x) I_C) K (H (x) I_C)``: over the rows, for every pair of outputs by itself."""
    outputs = len(values) // rows
    blocks = values.reshape(rows, outputs, rows, outputs)
    blocks = blocks - blocks.mean(axis=0, keepdims=True)
    blocks = blocks - blocks.mean(axis=2, keepdims=True)
    return np.asarray(blocks.reshape(values.shape))


def _tolerance(features_nd: Matrix) -> float:
    """Share of a kernel's trace that rounding of features and means may make of equal rows."""
    kind = features_nd.dtype if np.issubdtype(features_nd.dtype, np.floating) else np.float64
    of_means = len(features_nd) * float(np.finfo(np.float64).eps)
    return max(_ROUNDING * float(np.finfo(kind).eps), of_means) ** 2


def _check_logits(logits_nc: Matrix | None, rows: int, kind: KernelKind) -> Matrix:
    if kind not in ("softmax_trace", "softmax_full"):
        raise ValueError(f"kind must be logits, softmax_trace or softmax_full, got {kind!r}")
    if logits_nc is None or logits_nc.ndim != 2 or len(logits_nc) != rows:
        shape = None if logits_nc is None else logits_nc.shape
        raise ValueError(f"{kind} needs logits ({rows}, C), got {shape}")
    if logits_nc.shape[1] == 1:
        logits_nc = np.concatenate([np.zeros_like(logits_nc), logits_nc], axis=1)
    size = rows * logits_nc.shape[1]
    if kind == "softmax_full" and size > LARGEST_FULL_KERNEL:
        raise ValueError(
            f"softmax_full needs a kernel of {size} x {size}, more than {LARGEST_FULL_KERNEL}; "
            "use fewer rows or softmax_trace"
        )
    return logits_nc
