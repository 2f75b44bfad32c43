"""The local rule: hooks that a method may use in the common loop of `client_app.training`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar, TrainSection
from fedapp.state import State

if TYPE_CHECKING:
    from torch import Tensor

    from client_app.parameters import AdapterParameters


class LocalRule:
    """Train everything with the task's loss alone; every hook does nothing.

    A rule lives for one instruction. Whatever must outlive it goes through `state_dict`.

    Parameters
    ----------
    config : RunConfig
    parameters : AdapterParameters
        The live LoRA pairs and heads of the resident model, by the time of `begin` loaded with what
        `start` returned.
    """

    moves_basis = False
    """Whether the server gives the pairs other factors every round, as a merge by SVD does."""
    keeps_state = False
    """Whether `state_dict` is more than empty, so that the site must have a place for it."""

    personal = False
    """Whether part of the model stays at the site, so that `start` needs what the site keeps."""

    offset = False
    """Whether `start` adds what the site keeps to the model; a site that keeps nothing can do
    without."""

    def __init__(self, config: RunConfig, parameters: AdapterParameters) -> None:
        self.config = config
        self.parameters = parameters

    def trainable(self, name: str) -> bool:
        """Whether the array ``name`` (as in ``Adapter.arrays``) is trained."""
        return True

    def contributes(self, name: str) -> bool:
        """Whether what is sent of the array ``name`` is this site's own work."""
        return self.trainable(name)

    def optimizer_settings(self) -> TrainSection:
        """Return the settings of the local optimiser; by default those of the run."""
        return self.config.train

    def alone(self) -> LocalRule:
        """Return the rule by which a site trains alone, to compare with: the same kind of steps."""
        train = self.optimizer_settings()
        return LocalRule(self.config.model_copy(update={"train": train}), self.parameters)

    def start(self, received: Mapping[str, Adapter]) -> Adapter:
        """Return the model that the site begins with, and is tested with; by default as it came."""
        return received["adapter"]

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Look at what was received; ``steps`` optimiser steps are planned."""

    def gradients(self, backward: Callable[[], Tensor]) -> Tensor:
        """Leave the task's gradients of an optimiser step in ``.grad``; return its loss.

        ``backward`` adds those at the parameters' present values and returns the loss there. It
        may be called at other points; the parameters are to be as before in the end.
        """
        return backward()

    def transform_gradients(self) -> None:
        """Change ``.grad`` after the backward pass and before clipping, once an optimiser step.

        A penalty with a closed-form gradient is added here: exact, and no graph is built.
        """

    def after_step(self, learning_rate: float) -> None:
        """Act after an optimiser step, which was taken with ``learning_rate``."""

    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return the payloads to send; by default the trained adapter.

        One that bears the name of a received payload has its layout.
        """
        return {"adapter": self.parameters.read()}

    def apart(self) -> LocalRule | None:
        """Return the rule by which the site then trains a model of its own; None: it has none.

        Asked before training. Once the contribution is read (`finish`, `numbers`), the model that
        the other rule's `start` returns is trained for as many steps, and is the personal model;
        `state_dict` finds it in the parameters. Its own payloads and state are not asked for.
        """
        return None

    def numbers(self) -> dict[str, float]:
        """Scalars to report with the reply, such as the penalty's last value."""
        return {}

    def state_dict(self) -> State:
        """What must survive until this site's next round; it never leaves the site."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` before `begin`; not called in the first round, or after a loss."""
