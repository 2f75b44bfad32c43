"""What a round's updates have in common: overlap, cancellation, cosines (numpy, pure).

Every number is computed per pair from r x r or Kr x Kr Grams, never from an m x n product, and then
averaged over the pairs. A number that is undefined (the overlap with B = 0 in the first round, the
pairwise cosine of one site) is left out rather than reported as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedapp.adapter import Adapter, Array
from fedapp.lowrank import (
    basis_overlap,
    cancellation_ratio,
    client_global_cosines,
    increment,
    pairwise_cosines,
)
from server_app.merges import Updates

MAX_SITES = 64
"""Most sites that enter the diagnostics; with more, this many evenly spaced ones by name stand for
all, because the Grams grow with the square of their number."""

Factors = tuple[Array, Array]


def round_diagnostics(sent: Adapter, updates: Updates) -> dict[str, float]:
    """Compare the updates of one round with one another and with what was sent.

    Parameters
    ----------
    sent : Adapter
        What the sites received.
    updates : sequence of WeightedAdapter
        The valid updates, sorted by site name.

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
    """
    chosen = _spaced(updates)
    weights = [update.weight for update in chosen]
    adapters = [update.adapter for update in chosen]
    collected: dict[str, list[float]] = {}
    for name, reference in sent.pairs.items():
        own = [adapter.pairs[name] for adapter in adapters]
        pairs = [(pair.scaling * pair.b_mr, pair.a_rn) for pair in own]
        base = (reference.scaling * reference.b_mr, reference.a_rn)
        for key, value in _of_pair(base, pairs, weights):
            if np.isfinite(value):
                collected.setdefault(key, []).append(value)
    return {key: float(np.mean(values)) for key, values in collected.items()}


def _of_pair(
    base: Factors, pairs: list[Factors], weights: list[float]
) -> Iterator[tuple[str, float]]:
    moved = [pair for pair in pairs if _moved(pair)]
    if _moved(base) and moved:
        for key, squared in (("overlap", False), ("overlap_squared", True)):
            yield key, _mean([basis_overlap(base[0], b_mr, squared=squared) for b_mr, _ in moved])
    increments = [increment(*pair, *base) for pair in pairs]
    if moved:
        yield "cancellation", cancellation_ratio(pairs, weights)
        yield "client_global_cosine", _mean(client_global_cosines(pairs, weights))
    if len(moved) > 1:
        yield "pairwise_cosine", _mean(_upper(pairwise_cosines(moved)))
    yield "cancellation_increment", cancellation_ratio(increments, weights)
