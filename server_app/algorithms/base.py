"""The base of every algorithm: what it changes around the merge of whatever method it runs under.

A method says how updates become one model; an algorithm says how much each update counts, where
the model goes from there, and what else travels. Neither knows the other by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.state import State
from server_app.updates import Update

Weighted = Sequence[tuple[float, Adapter]]
"""Adapters and the factors by which their products B A, and their tensors, are to be summed."""


@dataclass(frozen=True)
class Round:
    """A round as an algorithm sees it.

    Attributes
    ----------
    number : int
        From 1.
    sent : callable
        What a site received as ``"adapter"``.
    contributes : callable
        Whether what a site sends of an array (named as in ``Adapter.arrays``) is its own work.
    moves_basis : bool
        Whether the pairs get other factors every round, see `BaseStrategy.moves_basis`.
    recompose : callable
        Where that is so, writes a weighted sum of products as an adapter in the method's own form.
    examples : float
        Training examples of all sites that may train, sampled or not; of those that sent an update
        where the roster is not known.
    """

    number: int
    sent: Callable[[str], Adapter]
    contributes: Callable[[str], bool]
    moves_basis: bool
    recompose: Callable[[Weighted], Adapter]
    examples: float


class ServerAlgorithm:
    """FedAvg: every update counts as it is, and the merged model becomes the global one.

    One call a round, in this order: `payloads`, `settings` and `expected` for each site, then
    `adjust`, the method's merge, `step`, `absorb`.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def payloads(self, round: Round, site: str) -> dict[str, Adapter]:
        """Return what ``site`` receives besides the method's payloads.

        The same object for several sites is packed once.
        """
        return {}

    def settings(self, round: Round, site: str) -> dict[str, Scalar]:
        """Return numbers for the client half."""
        return {}

    def expected(self, round: Round, site: str) -> dict[str, Adapter]:
        """Return templates (only the layout counts) of what ``site`` must send besides."""
        return {}

    def adjust(self, round: Round, updates: Sequence[Update]) -> Sequence[Update]:
        """Return the updates as they are to be merged, sorted by site name as they came."""
        return updates

    def step(self, round: Round, previous: Adapter, merged: Adapter) -> Adapter:
        """Return the next global model, of the layout of ``previous``."""
        return merged

    def absorb(
        self, round: Round, updates: Sequence[Update], previous: Adapter, model: Adapter
    ) -> None:
        """Remember what the round taught; ``model`` is the next global one."""

    def numbers(self) -> dict[str, float]:
        """Return what to report of the last round beside the method's diagnostics."""
        return {}

    def state_dict(self) -> State:
        """What must survive until the next round; later changes must not reach into it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
