"""Server half of `fedavgm`: momentum on what each round adds to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.increments import difference
from fedapp.products import compress
from fedapp.state import State
from server_app.algorithms.base import Round, ServerAlgorithm

RANKS = 4
"""Times ``lora.rank``: the momentum's rank where ``fedavgm.rank-cap`` is 0."""


class FedAvgM(ServerAlgorithm):
    """``u <- beta u + d``, ``w <- w + eta u``, with ``d`` what the merge adds to ``w``.

    ``fedavgm.dampening`` makes it ``u <- beta u + (1 - beta) d``, whose step has the length of a
    single round's work; without, a steady ``d`` ends in steps of ``d / (1 - beta)``.

    Where a method averages factors, d and u are differences of factors. Where it gives the pairs
    another basis every round, these would be numbers of different directions; there d and u are
    products: ``d = B_merged A_merged - B A``, held as stacked factors and recompressed by an exact
    SVD to ``fedavgm.rank-cap``, and ``w + eta u`` is written in the method's form. Tensors have
    one basis for ever. Nothing of size m x n is formed.

    References
    ----------
    Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, arXiv 1909.06335, section 4.3.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._velocity: Adapter | None = None
        self._numbers: dict[str, float] = {}

    def step(self, round: Round, previous: Adapter, merged: Adapter) -> Adapter:
        """Move on from ``previous`` by the momentum."""
        settings = self.config.fedavgm
        fresh = 1 - settings.momentum if settings.dampening else 1.0
        if not round.moves_basis:
            self._velocity = self._add(difference(merged, previous), fresh)
            more = dict(self._velocity.arrays())
            rate = np.float32(settings.server_lr)
            return previous.map(lambda name, array: array + rate * more[name])
        terms = [(fresh, merged), (-fresh, previous)]
        if self._velocity is not None:
            terms.append((settings.momentum, self._velocity))
        cap = settings.rank_cap or RANKS * self.config.lora.rank
        self._velocity, error = compress(terms, cap)
        self._numbers = {"momentum_error": error}
        return round.recompose([(1.0, previous), (settings.server_lr, self._velocity)])

    def _add(self, change: Adapter, fresh: float) -> Adapter:
        last = dict(self._velocity.arrays()) if self._velocity is not None else {}
        beta, share = np.float32(self.config.fedavgm.momentum), np.float32(fresh)
        return change.map(
            lambda name, array: share * array + (beta * last[name] if last else np.float32(0))
        )

    def numbers(self) -> dict[str, float]:
        """``momentum_error``: what the rank cap took from u, as a share of its norm."""
        return dict(self._numbers)

    def state_dict(self) -> State:
        """The momentum u, absent before the first round."""
        return {} if self._velocity is None else {"velocity": self._velocity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the momentum."""
        self._velocity = state.get("velocity")
