"""What a site makes of its own model and those of the peers it accepts (numpy, pure).

    theta_i <- theta_i + gamma^t (1/|S|) sum_{j in S} (theta_j - theta_i)

Of a LoRA pair theta is the product ``s B A``: the mean of products is exact, and cut to the rank of
the pair. The mean of factors is what the formula says of the numbers that travel; its product is
not the mean of the products.

References
----------
LIGHTYEAR, arXiv 2608.12108.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.errors import MergeRefused
from fedapp.lowrank import factorise, sum_norm, weighted_sum_svd

MixOn = Literal["products", "factors"]
Terms = Sequence[tuple[float, Adapter]]


def step_size(round: int, gamma: float, floor: float) -> float:
    """Return ``max(gamma^t, floor)`` for the rounds t = 0, 1, ...

    ``gamma^t`` goes to 0, and with it all exchange: 0.95^12 is 0.54, 0.95^100 is 0.006.
    """
    if round < 0 or not 0 < gamma <= 1 or not 0 <= floor <= 1:
        raise ValueError(
            f"expected round >= 0, gamma in (0, 1] and a floor in [0, 1], got {round}, {gamma} "
            f"and {floor}"
        )
    return max(gamma**round, floor)


def mixing_weights(peers: int, step: float, *, include_self: bool) -> tuple[float, float]:
    """Return the weights of the own model and of each peer's; ``own + peers * each = 1``.

    With the own model in the mean (as in the authors' code) a peer weighs ``step / (|S| + 1)``,
    without (as in the paper) ``step / |S|``. Without peers the own model weighs 1.
    """
    if peers == 0:
        return 1.0, 0.0
    each = step / (peers + 1) if include_self else step / peers
    return (step / (peers + 1) if include_self else 0.0) + 1 - step, each


def mix(
    own: Adapter,
    peers: Sequence[Adapter],
    step: float,
    *,
    include_self: bool,
    on: MixOn = "products",
) -> tuple[Adapter, float]:
    """Return the own model moved towards the mean of the accepted ones.

    Parameters
    ----------
    own : Adapter
        As just trained.
    peers : sequence of Adapter
        Of the own layout, in the order in which they shall be summed.
    step : float
        See `step_size`.
    include_self : bool
        See `mixing_weights`.
    on : {"products", "factors"}
        What is averaged of a LoRA pair; tensors are averaged as they are.

    Returns
    -------
    adapter : Adapter
        ``own`` itself if nobody is accepted.
    error : float
        What the cut to the rank took, relative to the products' norm; 0 on factors.

    Raises
    ------
    ValueError
        If a layout differs or ``step`` is not in [0, 1].
    MergeRefused
        If a peer's model or the result is not finite.
    """
    if not 0 <= step <= 1:
        raise ValueError(f"step must be in [0, 1], got {step}")
    if not peers or step == 0:
        return own, 0.0
    mine, each = mixing_weights(len(peers), step, include_self=include_self)
    return combine([(mine, own), *((each, peer) for peer in peers)], on)


def combine(terms: Terms, on: MixOn = "products") -> tuple[Adapter, float]:
    """Return ``sum_k w_k theta_k`` in the ranks and scalings of the first term.

    Parameters
    ----------
    terms : sequence of (float, Adapter)
        Of one layout; weights of any sign, used as they are.
    on : {"products", "factors"}
        On products ``sum_k w_k s B_k A_k`` is cut to rank r by its SVD and split evenly over B and
        A. Where it is of a smaller rank, B has zero columns beside unit rows of A, so that the
        direction can still be trained.

    Returns
    -------
    adapter : Adapter
    error : float
        As of `mix`.

    Raises
    ------
    ValueError, MergeRefused
        As `mix`.
    """
    first = terms[0][1]
    for index, (_, adapter) in enumerate(terms):
        if adapter.layout() != first.layout():
            raise ValueError(f"term {index} has another layout than term 0; refuse it before")
        if not adapter.is_finite():
            raise MergeRefused(f"model {index} holds NaN or Inf; refuse it before it is mixed")
    if on == "factors":
        parts = [(weight, dict(adapter.arrays())) for weight, adapter in terms]
        total = first.map(lambda name, _: _sum([(w, arrays[name]) for w, arrays in parts]))
        return _finite(total), 0.0
    if on != "products":
        raise ValueError(f"on must be products or factors, got {on!r}")
    pairs: dict[str, LoraPair] = {}
    lost = whole = 0.0
    for name in first.pairs:
        pairs[name], lost_here, whole_here = _sum_pairs(
            [(weight, adapter.pairs[name]) for weight, adapter in terms]
        )
        lost, whole = lost + lost_here**2, whole + whole_here**2
    tensors = {
        name: _sum([(weight, adapter.tensors[name]) for weight, adapter in terms])
        for name in first.tensors
    }
    return _finite(Adapter(pairs, tensors)), float(np.sqrt(lost / whole)) if whole else 0.0


def _sum_pairs(terms: Sequence[tuple[float, LoraPair]]) -> tuple[LoraPair, float, float]:
    """Return the pair, the norm of what it lacks of the sum, and the norm of the sum."""
    first = terms[0][1]
    products = [(pair.b_mr, pair.a_rn) for _, pair in terms]
    weights = [weight * pair.scaling for weight, pair in terms]
    rank = min(first.rank, first.b_mr.shape[0], first.a_rn.shape[1])
    u_mr, s_r, vt_rn = weighted_sum_svd(products, weights, rank)
    b_mr, a_rn = factorise(u_mr, s_r / np.float64(first.scaling), vt_rn)
    dead_r = s_r <= np.finfo(np.float32).eps * s_r.max(initial=0.0)
    b_mr, a_rn = np.where(dead_r, 0, b_mr), np.where(dead_r[:, None], vt_rn, a_rn)
    missing = first.rank - rank
    pair = LoraPair(
        np.pad(b_mr, ((0, 0), (0, missing))).astype(np.float32),
        np.pad(a_rn, ((0, missing), (0, 0))).astype(np.float32),
        first.scaling,
    )
    left = sum_norm([*products, (pair.b_mr, pair.a_rn)], [*weights, -pair.scaling])
    return pair, left, sum_norm(products, weights)


def _sum(terms: Sequence[tuple[float, Array]]) -> Array:
    total = np.zeros(terms[0][1].shape)
    for weight, array in terms:
        total += np.multiply(array, weight, dtype=np.float64)
    with np.errstate(over="ignore"):  # an overflow is refused by name
        return total.astype(np.float32)


def _finite(mixed: Adapter) -> Adapter:
    if not mixed.is_finite():
        raise MergeRefused("the mixed model would be non-finite; keep the previous one")
    return mixed
