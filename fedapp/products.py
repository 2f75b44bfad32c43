"""Sums of the products of whole adapters, kept as pairs of a bounded rank (numpy, pure)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.lowrank import factorise, weighted_sum_svd

Terms = Sequence[tuple[float, Adapter]]


def compress(terms: Terms, cap: int) -> tuple[Adapter, float]:
    """Sum products and tensors: ``s B A ~ sum_k w_k s_k B_k A_k`` with rank at most ``cap``.

    The sum is exact in fp64 while its stacked rank stays below m and n; of a higher rank the
    ``cap`` largest singular values stay, which is the best approximation there is. Directions of
    no weight are dropped. The factors are balanced and fp32.

    Parameters
    ----------
    terms : sequence of (float, Adapter)
        Ranks may differ, names and outer shapes not; the first term's scalings are kept.
    cap : int

    Returns
    -------
    adapter : Adapter
    error : float
        ``||sum - result||_F / ||sum||_F`` over all pairs; 0 of a sum that is zero.
    """
    pairs: dict[str, LoraPair] = {}
    lost = whole = 0.0
    for name, first in terms[0][1].pairs.items():
        own = [adapter.pairs[name] for _, adapter in terms]
        weights = [weight * pair.scaling for (weight, _), pair in zip(terms, own, strict=True)]
        m, n = first.b_mr.shape[0], first.a_rn.shape[1]
        stacked = min(m, n, sum(pair.rank for pair in own))
        u_mr, s_r, vt_rn = weighted_sum_svd([(p.b_mr, p.a_rn) for p in own], weights, stacked)
        keep = _rank(s_r, cap)
        energy = np.square(s_r, dtype=np.float64)
        lost, whole = lost + energy[keep:].sum(), whole + energy.sum()
        b_mr, a_rn = factorise(u_mr[:, :keep], s_r[:keep] / first.scaling, vt_rn[:keep])
        pairs[name] = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), first.scaling)
    return Adapter(pairs, _tensors(terms)), float(np.sqrt(lost / whole)) if whole else 0.0


def _rank(s_r: Array, cap: int) -> int:
    """How many singular values to keep: those that count, at most ``cap``, at least one."""
    counting = int((s_r > np.finfo(np.float32).eps * s_r.max(initial=0.0)).sum())
    return max(1, min(cap, counting))


def _tensors(terms: Terms) -> dict[str, Array]:
    sums: dict[str, Array] = {}
    for weight, adapter in terms:
        for name, array in adapter.tensors.items():
            term = np.float32(weight) * array
            sums[name] = sums[name] + term if name in sums else term
    return sums
