"""The merge rules: weighted updates in, one adapter out (numpy, pure).

Every rule takes the updates in the order in which they shall be summed; the round loop sorts them
by site name, so that a sum is bit-reproducible. Heads are weighted means in every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.errors import MergeRefused
from fedapp.lowrank import Factorisation, Pair, factorise, sum_norm, weighted_sum_svd
from fedapp.stacks import stack_adapters

PreserveNorm = Literal["none", "a", "split"]
Matrix = NDArray[np.floating[Any]]


class WeightedAdapter(Protocol):
    """What a merge needs of an update: its weight and its adapter, decoded when asked for."""

    @property
    def weight(self) -> float:
        """Weight in the merge, positive: the number of training examples."""

    @property
    def adapter(self) -> Adapter:
        """The site's adapter."""


Updates = Sequence[WeightedAdapter]


@dataclass(frozen=True)
class Part:
    """A term of a sum that is no site's update, such as a momentum."""

    weight: float
    adapter: Adapter


def average_factors(updates: Updates) -> Adapter:
    """Average A, B and heads separately: ``A = sum_k p_k A_k``, ``B = sum_k p_k B_k``.

    Bit-identical to Flower's own FedAvg on the same fp32 arrays in the same order. One update is
    decoded at a time, so memory does not depend on how many there are.

    The product of the averages is *not* the average of the products; that error is what the other
    rules avoid.
    """
    mean = _mean((update.adapter for update in updates), _shares(updates))
    return updates[0].adapter.map(lambda name, _: mean[name])


def sum_products(
    updates: Updates,
    factorisation: Factorisation = "symmetric",
    preserve_norm: bool = False,
    *,
    normalise: bool = True,
) -> Adapter:
    """Truncate the exact sum ``DW = sum_k p_k s_k B_k A_k`` to rank r and factorise it.

    With ``DW ~ U_r S_r V_r^T`` and the pair's scaling s:

    * ``symmetric``: ``B = U_r (S_r/s)^(1/2)``, ``A = (S_r/s)^(1/2) V_r^T``
    * ``orthonormal-a``: ``B = U_r S_r/s``, ``A = V_r^T`` (FlexLoRA)
    * ``orthonormal-b``: ``B = U_r``, ``A = S_r/s V_r^T``

    Parameters
    ----------
    updates : sequence of WeightedAdapter
    factorisation : {"symmetric", "orthonormal-a", "orthonormal-b"}
    preserve_norm : bool
        Multiply ``S_r`` by ``||DW||_F / ||S_r||_F``, the norm that truncation lost.
    normalise : bool
        Whether the weights are divided by their sum. If not, any sign will do, and the first
        adapter's rank and scaling are those of the result, whatever the ranks of the others.
    """

    def split(product: _Product) -> LoraPair:
        ratio = product.norm_ratio() if preserve_norm else 1.0
        b_mr, a_rn = product.factorise(factorisation, ratio)
        if factorisation == "symmetric":
            # Where both B and A vanish so do both gradients, and the direction would be lost for
            # the rest of the run. A unit row of A revives it and leaves the product as it is.
            dead_r = product.s_r <= np.finfo(np.float32).eps * product.s_r.max(initial=0.0)
            b_mr = np.where(dead_r, np.float32(0), b_mr)
            a_rn = np.where(dead_r[:, None], product.vt_rn, a_rn)
        return product.pair(b_mr, a_rn)

    return _merge_products(updates, split, normalise)


def orthonormal_basis(
    updates: Updates, preserve_norm: PreserveNorm = "a", *, normalise: bool = True
) -> Adapter:
    """Truncate the exact sum of products to rank r: ``B_g = U_r``, ``A_g = S_r/s V_r^T``.

    With ``rho = ||DW||_F / ||DW_r||_F``, the norm that truncation lost is given back to

    * ``a``: A alone, times rho; B stays orthonormal,
    * ``split``: A and B, each times ``rho^(1/2)``, as the released code does,
    * ``none``: neither.

    B is orthonormal (up to ``split``) even where singular values are zero, so a merge of zero
    products starts a usable basis. ``normalise`` as in `sum_products`.
    """

    def split(product: _Product) -> LoraPair:
        ratio = 1.0 if preserve_norm == "none" else product.norm_ratio()
        return product.pair(*product.factorise("orthonormal-b", ratio, preserve_norm == "split"))

    return _merge_products(updates, split, normalise)


def average_b_then_svd(updates: Updates, sent: Adapter) -> Adapter:
    """Average B over a shared A, then rotate the pair so that A is orthonormal.

    ``DW = s (sum_k p_k B_k) A`` is exact because every site kept A; it has rank r, so nothing is
    truncated: ``A <- V_r^T``, ``B <- U_r S_r / s``.

    Parameters
    ----------
    updates : sequence of WeightedAdapter
    sent : Adapter
        What the sites received, which fixes A.

    Raises
    ------
    MergeRefused
        If an update's A is not the A that was sent.
    """
    for update in updates:
        _require_shared_a(update, sent)
    mean = _mean((update.adapter for update in updates), _shares(updates))
    pairs = {}
    for name, pair in sent.pairs.items():
        shared = (mean[f"{name}.lora_B"], pair.a_rn)
        product = _Product([shared], [pair.scaling], pair.rank, pair.scaling)
        pairs[name] = product.pair(*product.factorise("orthonormal-a"))
    return Adapter(pairs, {name: mean[name] for name in sent.tensors})


def stack_products(updates: Updates, *, mean: bool = True) -> Adapter:
    """Return the exact ``sum_k w_k s_k B_k A_k`` as pairs of the stacked rank, of scaling 1.

    Parameters
    ----------
    updates : sequence of WeightedAdapter
    mean : bool
        Whether ``w_k`` is the site's share of all examples; otherwise it is 1. Heads are means
        in either case.
    """
    shares = _shares(updates)
    adapters = [update.adapter for update in updates]
    pairs = stack_adapters(adapters, shares if mean else [1.0] * len(adapters)).pairs
    heads = adapters[0].tensors
    return Adapter(pairs, _mean(adapters, shares, lambda name: name in heads))


class _Product:
    """One pair's ``DW = sum_k w_k B_k A_k ~ U_r S_r V_r^T``, the scaling being in the weights."""

    def __init__(self, pairs: list[Pair], weights: list[float], rank: int, scaling: float) -> None:
        self._pairs, self._weights, self._rank, self._scaling = pairs, weights, rank, scaling
        (m, _), (_, n) = pairs[0][0].shape, pairs[0][1].shape
        self.u_mr, self.s_r, self.vt_rn = weighted_sum_svd(pairs, weights, min(rank, m, n))

    def norm_ratio(self) -> float:
        """Return ``||DW||_F / ||DW_r||_F``, at least 1; 1 for a zero sum."""
        kept = float(np.linalg.norm(self.s_r.astype(np.float64)))
        return max(sum_norm(self._pairs, self._weights) / kept, 1.0) if kept > 0 else 1.0

    def factorise(
        self, kind: Factorisation, norm_ratio: float = 1.0, split_norm: bool = False
    ) -> tuple[Matrix, Matrix]:
        """Return B and A with ``s B A = norm_ratio DW_r``."""
        s_r = self.s_r / self._scaling
        return factorise(self.u_mr, s_r, self.vt_rn, kind, norm_ratio, split_norm)

    def pair(self, b_mr: Matrix, a_rn: Matrix) -> LoraPair:
        """Return the pair in fp32; a rank beyond the matrix's size is filled up with zeros."""
        missing = self._rank - a_rn.shape[0]
        b_mr, a_rn = np.pad(b_mr, ((0, 0), (0, missing))), np.pad(a_rn, ((0, missing), (0, 0)))
        return LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), self._scaling)


def _merge_products(
    updates: Updates, split: Callable[[_Product], LoraPair], normalise: bool
) -> Adapter:
    shares = _shares(updates) if normalise else [update.weight for update in updates]
    adapters = [update.adapter for update in updates]
    pairs = {}
    for name, first in adapters[0].pairs.items():
        own = [adapter.pairs[name] for adapter in adapters]
        product = _Product(
            [(pair.b_mr, pair.a_rn) for pair in own],
            [share * pair.scaling for share, pair in zip(shares, own, strict=True)],
            first.rank,
            first.scaling,
        )
        pairs[name] = split(product)
    heads = adapters[0].tensors
    return Adapter(pairs, _mean(adapters, shares, lambda name: name in heads))


def _require_shared_a(update: WeightedAdapter, sent: Adapter) -> None:
    received = update.adapter
    for name, pair in sent.pairs.items():
        if not np.array_equal(received.pairs[name].a_rn, pair.a_rn):
            raise MergeRefused(
                f"fedsvd trains B over the A that was sent, but the update changed A of pair "
                f"'{name}'; let every site run the method 'fedsvd'",
                site=getattr(update, "site", None),
            )


def _shares(updates: Updates) -> list[float]:
    total = sum(update.weight for update in updates)
    if not total > 0:
        raise MergeRefused(f"{len(updates)} updates with total weight {total}; nothing to merge")
    return [float(update.weight / total) for update in updates]


def _mean(
    adapters: Iterable[Adapter],
    shares: Sequence[float],
    wanted: Callable[[str], bool] = lambda _: True,
) -> dict[str, Array]:
    """Weighted mean of the wanted arrays, one adapter at a time.

    The order of operations (divide the weights first, then add product by product in the array's
    own precision) is that of Flower's FedAvg, so that the results agree to the last bit.
    """
    mean: dict[str, Array] = {}
    for adapter, share in zip(adapters, shares, strict=True):
        for name, array in adapter.arrays():
            if not wanted(name):
                continue
            if name in mean:
                mean[name] += array * share
            else:
                mean[name] = array * share
    return mean
