"""What a round's updates have in common: overlap, cancellation, cosines (numpy, pure).

Every number is computed per pair from r x r or Kr x Kr Grams, never from an m x n product, and then
averaged over the pairs. A number that is undefined (the overlap with B = 0 in the first round, the
pairwise cosine of one site) is left out rather than reported as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.lowrank import (
    basis_overlap,
    cancellation_ratio,
    client_global_cosines,
    increment,
    pairwise_cosines,
    sum_norm,
)
from server_app.merges import Updates

MAX_SITES = 32
"""Most sites that enter the diagnostics; with more, this many evenly spaced ones by name stand for
all, because the Grams grow with the square of their number."""

Factors = tuple[Array, Array]


def round_diagnostics(
    sent: Adapter, updates: Updates, merged: Adapter | None = None
) -> dict[str, float]:
    """Compare the updates of one round with one another and with what was sent.

    Parameters
    ----------
    sent : Adapter
        What the sites received.
    updates : sequence of WeightedAdapter
        The valid updates, sorted by site name.
    merged : Adapter, optional
        What they were merged into; without it ``merge_error`` is left out.

    Returns
    -------
    dict of str to float
        ``overlap``
            Mean of ``||Q_g^T Q_k||_F / sqrt(r)``, Q the orthonormal bases of the sent and the
            updated B; 1 means the same column space (Subspace-Reg, released code).
        ``overlap_squared``
            Mean of ``||Q_g^T Q_k||_F^2 / r`` (Subspace-Reg, paper).
        ``cancellation``
            ``||sum_k p_k DW_k||_F / sum_k p_k ||DW_k||_F`` of the products ``DW_k = s B_k A_k``;
            1 means that nothing cancels, 0 that everything does.
        ``cancellation_increment``
            The same of ``DW_k - DW_sent``, that is of this round's work alone. The cumulative ratio
            is dominated by what the sites share since earlier rounds.
        ``client_global_cosine``
            Mean of ``cos(DW_k, sum_j p_j DW_j)``.
        ``pairwise_cosine``
            Mean of ``cos(DW_j, DW_k)`` over j < k.
        ``merge_error``
            ``||DW_merged - sum_k p_k DW_k||_F / ||sum_k p_k DW_k||_F``: the cross terms of factor
            averaging, or what truncation to rank r lost. Left out with more than `MAX_SITES` sites.
    """
    chosen = _spaced(updates)
    total = sum(update.weight for update in chosen)
    weights = [update.weight / total for update in chosen]
    adapters = [update.adapter for update in chosen]
    collected: dict[str, list[float]] = {}
    for name, reference in sent.pairs.items():
        base = _factors(reference)
        pairs = [_factors(adapter.pairs[name]) for adapter in adapters]
        numbers = list(_of_pair(base, pairs, weights))
        if merged is not None and len(chosen) == len(updates):
            numbers += _merge_error(_factors(merged.pairs[name]), pairs, weights)
        for key, value in numbers:
            collected.setdefault(key, []).append(value)
    return {key: _mean(values) for key, values in collected.items()}


def _of_pair(
    base: Factors, pairs: list[Factors], weights: list[float]
) -> Iterator[tuple[str, float]]:
    moved = [index for index, pair in enumerate(pairs) if _nonzero(pair)]
    if _nonzero(base) and moved:
        shares = np.array([basis_overlap(base[0], pairs[k][0], squared=True) for k in moved])
        yield "overlap", _mean(np.sqrt(shares))
        yield "overlap_squared", _mean(shares)
    if moved:
        live, share = [pairs[k] for k in moved], [weights[k] for k in moved]
        yield "cancellation", cancellation_ratio(live, share)
        yield "client_global_cosine", _mean(client_global_cosines(live, share))
        if len(moved) > 1:
            cosines_kk = np.asarray(pairwise_cosines(live))
            yield "pairwise_cosine", _mean(cosines_kk[np.triu_indices(len(live), k=1)])
    increments = [increment(*pair, *base) for pair in pairs]
    yield "cancellation_increment", cancellation_ratio(increments, weights)


def _merge_error(
    merged: Factors, pairs: list[Factors], weights: list[float]
) -> list[tuple[str, float]]:
    exact = sum_norm(pairs, weights)
    if exact == 0:
        return []
    return [("merge_error", sum_norm([*pairs, merged], [*weights, -1.0]) / exact)]


def _factors(pair: LoraPair) -> Factors:
    """Return the pair without its scaling, which all sites share: it cancels from every ratio."""
    return pair.b_mr, pair.a_rn


def _nonzero(factors: Factors) -> bool:
    return bool(factors[0].any() and factors[1].any())


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _spaced(updates: Updates) -> Updates:
    if len(updates) <= MAX_SITES:
        return updates
    indices = np.linspace(0, len(updates) - 1, MAX_SITES).round().astype(int)
    return [updates[index] for index in indices]
