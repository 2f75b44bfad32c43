"""The base of every strategy: a Flower ``Strategy`` on small pieces that a method overrides.

A method usually overrides `merge` alone; `payloads` and `settings` when it sends more than the
model, `diagnostics` when it reports more, `begin` when it prepares the first model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.errors import MergeRefused
from fedapp.registry import ALGORITHMS, METHODS, load_half
from fedapp.state import State
from fedapp.validation import check_merge
from server_app.algorithms.base import Round, ServerAlgorithm, Weighted
from server_app.blame import largest_update
from server_app.consistency import movement
from server_app.diagnostics import round_diagnostics
from server_app.interference import Interference
from server_app.log import log, warn
from server_app.sampling import training_sites
from server_app.updates import Update

if TYPE_CHECKING:
    from server_app.roster import Roster


@dataclass(frozen=True)
class Exported:
    """The global model as one plain adapter.

    Attributes
    ----------
    adapter : Adapter
    peft_config : dict
        What differs from the sites' ``adapter_config.json``: rank and alpha.
    error : float or None
        What a cap on the rank has taken from its products, as a share of their norm; None if the
        adapter is the model as it was trained.
    """

    adapter: Adapter
    peft_config: dict[str, Any] = field(default_factory=dict)
    error: float | None = None


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
    algorithm : ServerAlgorithm, optional
        By default the one that ``federation.algorithm`` names.
    """

    moves_basis = False
    """Whether the pairs get other factors every round, as a merge by SVD gives them."""

    def __init__(self, config: RunConfig, algorithm: ServerAlgorithm | None = None) -> None:
        self.config = config
        named = ALGORITHMS[config.federation.algorithm].server
        self.algorithm: ServerAlgorithm = algorithm or load_half(named)(config)
        self.interference = Interference(config)
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

    def basis_layout(self) -> dict[str, Any] | None:
        """Return the layout of the bases that sites send before they train; None: they send none.

        If there is one, every round begins with `evaluation_payloads` to the sites drawn, which
        answer with their bases.
        """
        return None

    def take_bases(self, round: int, bases: Mapping[str, Adapter], sites: Sequence[str]) -> None:
        """Take the validated bases, by site, of some or all of the ``sites`` that will train."""

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

    def accept(self, round: int, model: Adapter) -> Adapter:
        """Take what the algorithm made of the merge as the next global model, and return it."""
        self.adapter = model
        return model

    def numbers(self) -> dict[str, float]:
        """Return what to report of the newest model, once it is accepted."""
        return {}

    def exported(self) -> Exported:
        """Return the global model as one adapter that plain PEFT loads."""
        return Exported(self.adapter)

    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Return the factor of each site's work in the merged model."""
        total = sum(update.weight for update in updates)
        return [update.weight / total for update in updates]

    def whole(self, part: Adapter) -> Adapter | None:
        """Return the model of which a site received or sent ``part``, with all of its pairs.

        None: the coordinator does not know it. Asked before `accept`.
        """
        return part

    def contributes(self, name: str) -> bool:
        """Whether what a site sends of an array is its own work, see ``LocalRule.contributes``."""
        return True

    def recompose(self, parts: Weighted) -> Adapter:
        """Write a weighted sum of products, and of tensors, in the form of the method's merge.

        Called only where `moves_basis` is true. The first part has the model's layout and decides
        rank and scaling; the ranks of the others may differ.
        """
        raise TypeError(f"{type(self).__name__} moves the basis and does not say into which form")

    def diagnostics(
        self, round: int, sent: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Return numbers that describe the round, such as the overlap of the subspaces."""
        return round_diagnostics(sent, updates, merged)

    def state_dict(self) -> State:
        """What must survive a restart: adapters, numpy arrays and JSON values by name."""
        state: State = {"adapter": self.adapter}
        for name, part in self._parts().items():
            state.update({f"{name}.{k}": v for k, v in part.state_dict().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.adapter = state["adapter"]
        for name, part in self._parts().items():
            prefix = f"{name}."
            part.load_state_dict(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )

    def _parts(self) -> dict[str, ServerAlgorithm | Interference]:
        return {"algorithm": self.algorithm, "interference": self.interference}

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
            around = self._around(round, updates)
            adjusted = self.algorithm.adjust(around, updates)
            merged = self.merge(round, adjusted)
            check_merge(merged, round)
            stepped = self.algorithm.step(around, previous, merged)
            check_merge(stepped, round)
            diagnostics = self._diagnose(round, previous, adjusted, merged)
            self.algorithm.absorb(around, updates, previous, stepped)
            self.interference.remember(around, adjusted, self.weights(adjusted), self.whole)
            model = self.accept(round, stepped)
            diagnostics = {
                **diagnostics,
                **self.algorithm.numbers(),
                **self.interference.numbers(updates),
                **self.numbers(),
            }
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
        return Aggregate(model, diagnostics)

    def sends(self, round: int, site: str) -> dict[str, Adapter]:
        """Return all that ``site`` receives: the method's payloads and what is beside it."""
        more = self.algorithm.payloads(self._around(round), site)
        return {**self.payloads(round, site), **more, **self.interference.payloads(site)}

    def sends_settings(self, round: int, site: str) -> dict[str, Scalar]:
        """Return all numbers that ``site`` receives."""
        more = self.algorithm.settings(self._around(round), site)
        return {**self.settings(round, site), **more}

    def expects(self, round: int, site: str) -> dict[str, Adapter]:
        """Return templates of all that ``site`` must send."""
        more = self.algorithm.expected(self._around(round), site)
        return {**self.expected(round, site), **more}

    def _around(self, round: int, updates: Sequence[Update] = ()) -> Round:
        examples = sum(update.weight for update in updates)
        if self.roster is not None:
            sites = training_sites(self.roster.sites, self.config)
            examples = float(sum(self.roster.training_records(site) for site in sites))
        return Round(
            number=round,
            sent=lambda site: self.payloads(round, site)["adapter"],
            contributes=self.contributes,
            moves_basis=self.moves_basis,
            recompose=self.recompose,
            examples=examples,
        )

    def _diagnose(
        self, round: int, previous: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Return the diagnostics, none if they cannot be computed: the model does not need them."""
        try:
            numbers = self.diagnostics(round, previous, updates, merged)
            return numbers if self.moves_basis else numbers | movement(previous, updates, merged)
        except np.linalg.LinAlgError as error:
            warn(f"round {round}: no diagnostics, a decomposition does not converge ({error})")
            return {}

    # ---- Flower's interface -----------------------------------------------------------------

    def summary(self) -> None:
        """Log the method and its settings."""
        method = self.config.method
        algorithm = self.config.federation.algorithm
        log(f"method {method}: {METHODS[method].summary}")
        log(f"algorithm {algorithm}: {ALGORITHMS[algorithm].summary}")
        for key, value in self.config.to_flat().items():
            if key.startswith((f"{method}.", f"{algorithm}.")):
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
