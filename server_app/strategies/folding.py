"""Boosting: every round trains a fresh pair on top of all earlier ones, which are folded.

What is common to `dysco`, `random_boost` and `flora`; they differ in the A they hand out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, MergeRefused
from fedapp.lowrank import sum_norm
from fedapp.stacks import of_rank, recompress, stack_adapters
from fedapp.state import State
from fedapp.validation import check_merge
from server_app.algorithms.base import Weighted
from server_app.diagnostics import round_diagnostics
from server_app.merges import stack_products
from server_app.strategies.base import BaseStrategy, Exported
from server_app.updates import Update


class Folding(BaseStrategy):
    """``W_t = W_0 + sum_{u < t} sum_k p_k s B_k^u A_k^u``: products are summed, never factors.

    A site receives A, a B of zero, the heads, and everything learned before as one pair a layer
    of a larger rank (``folded``), which it adds to its frozen weights: the forward pass of round
    100 costs what that of round 1 does, and one message brings a site up to date that was away.

    `merge` returns the round's products, stacked; an algorithm may carry them on (`fedavgm`), and
    `accept` folds them.
    """

    moves_basis = True
    trains_a = False
    """Whether sites train A as well; otherwise it must come back as it was sent."""
    shares_a = True
    """Whether all sites get one A."""

    def __init__(self, config: RunConfig, *more: Any) -> None:
        super().__init__(config, *more)
        self.folded: Adapter | None = None
        self._starts: dict[str, Adapter] = {}
        self._starts_of: tuple[int, Adapter | None] = (0, None)
        self._numbers: dict[str, float] = {}

    @abstractmethod
    def factors(self, round: int, site: str) -> Mapping[str, Array]:
        """Return the A of every pair for a site in a round; the same at every call."""

    def begin(self, initial: Adapter) -> None:
        """Take the heads of the initial adapter, and its layout."""
        for name, pair in initial.pairs.items():
            if pair.rank > pair.a_rn.shape[1]:
                raise ConfigError(
                    f"lora.rank is {pair.rank}, but layer '{name}' has only {pair.a_rn.shape[1]} "
                    "inputs, among which no more directions are orthogonal; lower lora.rank"
                )
        super().begin(_without_b(initial))

    def contributes(self, name: str) -> bool:
        """Everything, or everything but the A of a pair."""
        return self.trains_a or not name.endswith(".lora_A")

    def payloads(self, round: int, site: str) -> dict[str, Adapter]:
        """Return the site's start of the round, and what earlier rounds have learned."""
        return {"adapter": self._start(round, site), **self._past()}

    def evaluation_payloads(self, site: str) -> dict[str, Adapter]:
        """Return the heads with a B of zero, and what was learned."""
        return {"adapter": self.adapter, **self._past()}

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return ``sum_k w_k s B_k A_k`` as stacked factors, and the mean of the heads."""
        if not self.trains_a:
            for update in updates:
                self._require_own_a(round, update)
        return stack_products(updates, mean=self.config.dysco.merge_scale == "mean")

    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Return the factors of the products, by ``dysco.merge-scale``."""
        if self.config.dysco.merge_scale == "sum":
            return [1.0] * len(updates)
        return super().weights(updates)

    def recompose(self, parts: Weighted) -> Adapter:
        """Return a sum as stacked factors, exactly."""
        weights, adapters = [weight for weight, _ in parts], [adapter for _, adapter in parts]
        tensors = {
            name: np.sum(
                [weight * adapter.tensors[name] for weight, adapter in parts], axis=0
            ).astype(np.float32)
            for name in adapters[0].tensors
        }
        return Adapter(stack_adapters(adapters, weights).pairs, tensors)

    def accept(self, round: int, model: Adapter) -> Adapter:
        """Fold the round's products; the model is then the heads with a B of zero."""
        work = Adapter(model.pairs)
        past = [] if self.folded is None else [self.folded]
        whole = stack_adapters([*past, work], [1.0] * (len(past) + 1))
        cut = recompress(whole, self.config.dysco.folded_rank)
        folded = cut.adapter
        check_merge(folded, round)
        self._numbers = {
            "folded_rank": float(max(pair.rank for pair in folded.pairs.values())),
            "folded_norm": cut.norm,
            "round_norm": product_norm(work),
            "truncation_error": cut.error,
        }
        self.folded = folded
        self.adapter = Adapter(self.adapter.pairs, model.tensors)
        return self.adapter

    def diagnostics(
        self, round: int, sent: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Return what the updates have in common; the sum of the products itself is exact."""
        return round_diagnostics(sent, updates)

    def numbers(self) -> dict[str, float]:
        """Return how large what was folded is.

        ``folded_rank``, ``folded_norm`` and ``round_norm`` (Frobenius norms of all that was folded
        and of this round's part, over all layers), and ``truncation_error``, what the cap
        ``dysco.folded-rank`` took this round as a share of the norm.
        """
        return dict(self._numbers)

    def exported(self) -> Exported:
        """Return the ensemble of all rounds as one adapter of scaling 1."""
        if self.folded is None:
            return super().exported()
        cut = recompress(self.folded, self.config.dysco.export_rank)
        rank = max(pair.rank for pair in cut.adapter.pairs.values())
        return Exported(
            Adapter(of_rank(cut.adapter, rank, 1.0).pairs, self.adapter.tensors),
            {"r": rank, "lora_alpha": rank},
            cut.error,
        )

    def state_dict(self) -> State:
        """The heads, what was folded, and the algorithm's state."""
        folded = {} if self.folded is None else {"folded": self.folded}
        return {**super().state_dict(), **folded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        super().load_state_dict(state)
        self.folded = state.get("folded")

    def _past(self) -> dict[str, Adapter]:
        return {} if self.folded is None else {"folded": self.folded}

    def _start(self, round: int, site: str) -> Adapter:
        """Return the same object in all of a round, for one site or for all."""
        if self._starts_of[0] != round or self._starts_of[1] is not self.adapter:
            self._starts, self._starts_of = {}, (round, self.adapter)
        key = "" if self.shares_a else site
        if key not in self._starts:
            factors = self.factors(round, site)
            self._starts[key] = Adapter(
                {
                    name: LoraPair(pair.b_mr, factors[name], pair.scaling)
                    for name, pair in self.adapter.pairs.items()
                },
                self.adapter.tensors,
            )
        return self._starts[key]

    def _require_own_a(self, round: int, update: Update) -> None:
        received = update.adapter
        for name, pair in self._start(round, update.site).pairs.items():
            if not np.array_equal(received.pairs[name].a_rn, pair.a_rn):
                method = self.config.method
                raise MergeRefused(
                    f"{method} trains B over the A that was sent, but the update changed A of "
                    f"pair '{name}'; let every site run the method '{method}'",
                    site=update.site,
                    round=round,
                )


def product_norm(adapter: Adapter) -> float:
    """Return the Frobenius norm of all products ``s B A`` of an adapter together."""
    squares = [
        sum_norm([(pair.b_mr, pair.a_rn)], [pair.scaling]) ** 2 for pair in adapter.pairs.values()
    ]
    return float(np.sqrt(sum(squares)))


def _without_b(adapter: Adapter) -> Adapter:
    return adapter.map(
        lambda name, array: np.zeros_like(array) if name.endswith(".lora_B") else array
    )
