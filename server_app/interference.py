"""How far the others' updates of a round move what a site computes: what the sites need for it.

A site measures ``sum_{k != j} p_k DW_k`` of the last round on its own activations and reports one
number. It is told the sum, in factors that an SVD has mixed, which it could also take from two
received models: no site sees another's update (with two sites the other's is all there is), and no
activation leaves a site.

With ``federation.interference_each`` every site is told of each other's work, without names, what
decides the length ``||DW_k h||`` and no more: the factor ``R A`` of ``B A = Q R A``. What the work
does to an input, ``Q``, is not among it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.config import RunConfig
from fedapp.lowrank import increment
from fedapp.products import compress
from fedapp.state import State
from server_app.algorithms.base import Round
from server_app.updates import Update

Double = NDArray[np.float64]
Whole = Callable[[Adapter], "Adapter | None"]
OTHERS, OWN, EACH = "others_work", "own_work", "each_work"
"""Payloads: the weighted work of all other sites, and of the site itself, in the last round; the
right factors of every other's, one tensor (sites, rank, features) a layer."""
NUMBERS = ("interference", "own_effect")
SUM = "interference_sum"
"""What a site reports, see ``client_app.interference``."""
RANK_CAP = 64


class Interference:
    """Remembers a round's weighted work of every site until the next one.

    Parameters
    ----------
    config : RunConfig
        ``federation.interference`` and ``interference_each`` say whether anything is done at all.
    """

    def __init__(self, config: RunConfig) -> None:
        self._each = config.federation.interference_each
        self._on = config.federation.interference or self._each
        self._work: dict[str, Adapter] = {}
        self._shown: dict[str, dict[str, Adapter]] = {}

    def payloads(self, site: str) -> dict[str, Adapter]:
        """Return what ``site`` needs to measure; nothing before round 2."""
        if not self._work:
            return {}
        if site not in self._shown:
            others = [work for name, work in self._work.items() if name != site]
            shown = {}
            if others:
                shown[OTHERS] = compress([(1.0, work) for work in others], RANK_CAP)[0]
            if others and self._each:
                shown[EACH] = _right_factors(others)
            if site in self._work:
                shown[OWN] = self._work[site]
            self._shown[site] = shown
        return self._shown[site]

    def remember(
        self, round: Round, updates: Sequence[Update], weights: Sequence[float], whole: Whole
    ) -> None:
        """Keep ``w_k (DW_k - DW_sent)`` of every site.

        ``whole`` is `BaseStrategy.whole`; of a method whose products the sites keep to themselves
        nothing is remembered, and nothing is measured.
        """
        if not self._on:
            return
        self._shown, self._work = {}, {}
        for update, weight in zip(updates, weights, strict=True):
            after, before = whole(update.adapter), whole(round.sent(update.site))
            if after is not None and before is not None:
                self._work[update.site] = _work(after, before, weight)

    def numbers(self, updates: Sequence[Update]) -> dict[str, float]:
        """Return means over the sites that have measured, and the mean of their ratios."""
        found = [u.numbers for u in updates if all(name in u.numbers for name in NUMBERS)]
        if not found:
            return {}
        names = [*NUMBERS, *([SUM] if all(SUM in numbers for numbers in found) else [])]
        means = {name: sum(numbers[name] for numbers in found) / len(found) for name in names}
        own = means["own_effect"]
        return {**means, **({"interference_ratio": means["interference"] / own} if own else {})}

    def state_dict(self) -> State:
        """The work of the last round."""
        return {f"work.{site}": work for site, work in self._work.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._shown = {}
        self._work = {name.removeprefix("work."): work for name, work in state.items() if self._on}


def _work(after: Adapter, sent: Adapter, weight: float) -> Adapter:
    pairs = {}
    for name, pair in after.pairs.items():
        start = sent.pairs[name]
        factors = pair.b_mr, pair.a_rn
        if start.b_mr.any():
            factors = increment(*factors, start.b_mr, start.a_rn)  # type: ignore[assignment]
        pairs[name] = LoraPair(factors[0], factors[1], weight * pair.scaling)
    return Adapter(pairs)


def _right_factors(works: Sequence[Adapter]) -> Adapter:
    """Return ``s R_k A_k`` of all, filled up with zero rows; the largest work first."""
    factors = [{name: _right(pair) for name, pair in work.pairs.items()} for work in works]
    factors.sort(key=lambda of_site: -sum(float(np.sum(f**2)) for f in of_site.values()))
    tensors = {}
    for name in factors[0]:
        rank = max(len(of_site[name]) for of_site in factors)
        tensors[name] = np.stack(
            [np.pad(f, ((0, rank - len(f)), (0, 0))) for f in (o[name] for o in factors)]
        )
    return Adapter({}, tensors)


def _right(pair: LoraPair) -> Array:
    r_rr: Double = np.linalg.qr(pair.b_mr.astype(np.float64), mode="r")  # type: ignore[assignment]
    factor: Array = (pair.scaling * r_rr @ pair.a_rn).astype(np.float32)
    return factor
