"""Control variates, that is gradients of a model's arrays, and what becomes of them where the
factors of its pairs change from round to round (numpy, pure).

A gradient is held array by array as an adapter of tensors alone: ``"q.lora_B"`` is the gradient of
pair q's B. With ``G`` the gradient of the loss in the weight that the pair adds to, and s its
scaling, these are ``s G A^T`` and ``s B^T G``: numbers that mean something only beside the A and B
they were taken at. What can be carried to other factors is their lift

    L_B = g_B (A^+)^T = s G P_A        L_A = (B^+)^T g_A = s P_B G

with the projections P on the row space of A and the column space of B. In other factors it reads

    g_B = L_B A'^T                     g_A = B'^T L_A,

for orthonormal A ``g_B <- g_B A A'^T``. Lifts add up whatever factors each was taken at, so that a
mean over sites with different A, or over rounds, is a sum of low-rank products.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.products import compress

_A, _B = ".lora_A", ".lora_B"
_SMALLEST = 1e-4
"""Singular values of a factor below this share of the largest count as zero."""
RANKS = 4
"""Times ``lora.rank``: the largest rank of a lift where no other is set."""


def zeros(model: Adapter, contributes: Callable[[str], bool]) -> Adapter:
    """Return the gradient that is zero, of the arrays of ``model`` that a site contributes."""
    return Adapter(
        {}, {name: np.zeros_like(array) for name, array in model.arrays() if contributes(name)}
    )


def lift(gradient: Adapter, model: Adapter) -> Adapter:
    """Return the lift of a gradient taken at the factors of ``model``.

    Returns
    -------
    Adapter
        A pair ``"q.lora_B"`` of the product ``L_B``, likewise for A; what belongs to no pair of
        ``model`` stays a tensor.
    """
    pairs: dict[str, LoraPair] = {}
    tensors: dict[str, Array] = {}
    for name, array in gradient.tensors.items():
        pair = model.pairs.get(name.removesuffix(_A).removesuffix(_B))
        if pair is None:
            tensors[name] = array
        elif name.endswith(_B):
            pairs[name] = LoraPair(array, _float(_inverse(pair.a_rn).T), 1.0)
        else:
            pairs[name] = LoraPair(_float(_inverse(pair.b_mr).T), array, 1.0)
    return Adapter(pairs, tensors)


def in_factors_of(lifted: Adapter, model: Adapter) -> Adapter:
    """Return a lift as a gradient in the factors of ``model``, the inverse of `lift` there."""
    tensors = dict(lifted.tensors)
    for name, product in lifted.pairs.items():
        pair = model.pairs[name.removesuffix(_A).removesuffix(_B)]
        left_mk, right_kn = product.b_mr.astype(np.float64), product.a_rn.astype(np.float64)
        if name.endswith(_B):
            tensors[name] = _float(left_mk @ (right_kn @ pair.a_rn.T))
        else:
            tensors[name] = _float((pair.b_mr.T @ left_mk) @ right_kn)
    return Adapter({}, tensors)


def add(
    lifted: Adapter | None, terms: list[tuple[float, Adapter]], cap: int
) -> tuple[Adapter, float]:
    """Return a lift plus a weighted sum of others, with products of rank ``cap`` at most.

    And what the cap took of the products, as a share of their norm, see `compress`.
    """
    return compress(terms if lifted is None else [(1.0, lifted), *terms], cap)


def _inverse(matrix: Array) -> NDArray[np.float64]:
    inverse: NDArray[np.float64] = np.linalg.pinv(matrix.astype(np.float64), rcond=_SMALLEST)
    return inverse


def _float(matrix: NDArray[np.float64]) -> Array:
    return np.ascontiguousarray(matrix, dtype=np.float32)
