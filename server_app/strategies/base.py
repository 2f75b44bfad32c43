"""The base of every strategy: a Flower ``Strategy`` on small pieces that a method overrides.

A method usually overrides `merge` alone; `payloads` and `settings` when it sends more than the
model, `diagnostics` when it reports more, `begin` when it prepares the first model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.errors import MergeRefused
from fedapp.registry import METHODS
from fedapp.state import State
from fedapp.validation import check_merge
from server_app.blame import largest_update
from server_app.diagnostics import round_diagnostics
from server_app.log import log, warn
from server_app.optimizers import Replace, ServerOptimizer
from server_app.updates import Update

if TYPE_CHECKING:
    from server_app.roster import Roster


@dataclass(frozen=True)
class Aggregate:
    """What came out of a round's merge: the next global model and what to report of it."""

    adapter: Adapter
    diagnostics: dict[str, float]


class BaseStrategy(Strategy):
    """Everything a method shares with the others.

    Parameters
    ----------
    config : RunConfig
    optimizer : ServerOptimizer, optional
        By default the merged model replaces the previous one.
    """

    def __init__(self, config: RunConfig, optimizer: ServerOptimizer | None = None) -> None:
        self.config = config
        self.optimizer: ServerOptimizer = optimizer or Replace()
        self.roster: Roster | None = None
        self._adapter: Adapter | None = None

    # ---- what a method overrides ------------------------------------------------------------

    def begin(self, initial: Adapter) -> None:
        """Take the initial adapter before round 1; a method may change it (not its layout)."""
        self.adapter = initial

    def payloads(self, round: int, site: str) -> dict[str, Adapter]:
        """Return what ``site`` receives; the same object for several sites is packed once.

        Called again when the site's update is an increment on it: the round's answer is one.
        """
        return {"adapter": self.adapter}

    def settings(self, round: int, site: str) -> dict[str, Scalar]:
        """Return numbers for the client half of the method."""
        return {}

    def evaluation_payloads(self, site: str) -> dict[str, Adapter]:
        """Return what ``site`` receives to evaluate the final model."""
        return {"adapter": self.adapter}

    def expected(self, round: int, site: str) -> dict[str, Adapter]:
        """Return templates (only the layout counts) of the payloads that ``site`` must send."""
        return {"adapter": self.adapter}

    @abstractmethod
    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Combine validated updates, sorted by site name, into one adapter.

        Parameters
        ----------
        round : int
            From 1.
        updates : sequence of Update
            At least one; all of the layout of `expected`.

        Returns
        -------
        Adapter
            Of the same layout as `adapter`.
        """

    def server_step(self, previous: Adapter, merged: Adapter) -> Adapter:
        """Return the next global model from the previous and the merged one."""
        return self.optimizer.step(previous, merged)

    def diagnostics(
        self, round: int, sent: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Return numbers that describe the round, such as the overlap of the subspaces."""
        return round_diagnostics(sent, updates, merged)

    def state_dict(self) -> State:
        """What must survive a restart: adapters, numpy arrays and JSON values by name."""
        state: State = {"adapter": self.adapter}
        state.update({f"optimizer.{k}": v for k, v in self.optimizer.state_dict().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.adapter = state["adapter"]
        prefix = "optimizer."
        self.optimizer.load_state_dict(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )

    # ---- what the round loop calls ----------------------------------------------------------

    @property
    def adapter(self) -> Adapter:
        """The current global model."""
        if self._adapter is None:
            raise RuntimeError("the strategy has no model yet: call begin() first")
        return self._adapter

    @adapter.setter
    def adapter(self, value: Adapter) -> None:
        self._adapter = value

    def aggregate(self, round: int, updates: Sequence[Update]) -> Aggregate:
        """Merge, step and diagnose; on success the result is the new global model.

        Raises
        ------
        MergeRefused
            If the result would not be finite.
        UpdateRefused
            If the method cannot use one of the updates; the error names its site.

        Notes
        -----
        After an error model and state are as before the call.
        """
        updates = sorted(updates, key=lambda update: update.site)
        before = self.state_dict()
        previous = self.adapter
        try:
            merged = self.merge(round, updates)
            check_merge(merged, round)
            stepped = self.server_step(previous, merged)
            check_merge(stepped, round)
            diagnostics = self._diagnose(round, previous, updates, merged)
        except np.linalg.LinAlgError as error:
            self.load_state_dict(before)
            raise MergeRefused(
                f"the merge does not converge ({error}); the previous model is kept; "
                f"{largest_update(updates)}",
                round=round,
            ) from None
        except MergeRefused as error:
            self.load_state_dict(before)
            if error.site is not None:
                raise  # the method knows whose update it cannot use
            raise MergeRefused(f"{error.message}; {largest_update(updates)}", round=round) from None
        except Exception:
            self.load_state_dict(before)
            raise
        self.adapter = stepped
        return Aggregate(stepped, diagnostics)

    def _diagnose(
        self, round: int, previous: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Return the diagnostics, none if they cannot be computed: the model does not need them."""
        try:
            return self.diagnostics(round, previous, updates, merged)
        except np.linalg.LinAlgError as error:
            warn(f"round {round}: no diagnostics, a decomposition does not converge ({error})")
            return {}

    # ---- Flower's interface -----------------------------------------------------------------

    def summary(self) -> None:
        """Log the method and its settings."""
        method = self.config.method
        log(f"method {method}: {METHODS[method].summary}")
        for key, value in self.config.to_flat().items():
            if key.startswith(f"{method}."):
                log(f"  {key} = {value}")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per sampled site of this round."""
        from server_app import flower

        return flower.configure_train(self, server_round, arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies, merge them and return the model and the mean metrics."""
        from server_app import flower

        return flower.aggregate_train(self, server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per site, asking for the test split."""
        from server_app import flower

        return flower.configure_evaluate(self, server_round, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean metrics over the sites."""
        from server_app import flower

        return flower.aggregate_evaluate(self, server_round, replies)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run fedapp's round loop (deadlines, validation, checkpoints) instead of Flower's.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord
            The first model by array name; empty: one of the sites sends the seeded one.
        num_rounds : int
        timeout : float
            Longest wait for a round's replies, in seconds.
        train_config, evaluate_config : ConfigRecord, optional
            Not used: a site's settings are those of the run.
        evaluate_fn : callable, optional
            Called with the round and the model, before round 1 and after every round.
        """
        from server_app import flower

        return flower.start(self, grid, initial_arrays, num_rounds, timeout, evaluate_fn)
