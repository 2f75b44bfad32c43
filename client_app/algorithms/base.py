"""The base of an algorithm's client half: hooks beside those of whatever method it runs under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from client_app.methods.base import LocalRule
from client_app.parameters import AdapterParameters
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.state import State


class LocalAlgorithm:
    """FedAvg: change nothing; every hook does nothing.

    The hooks are those of `LocalRule` that do not decide what is trained or merged. Each is called
    right after the method's own, so that a gradient holds the method's penalty already.

    Parameters
    ----------
    config : RunConfig
    parameters : AdapterParameters
    rule : LocalRule
        The method's, which says what is trained and what the site contributes.
    """

    keeps_state = False

    def __init__(self, config: RunConfig, parameters: AdapterParameters, rule: LocalRule) -> None:
        self.config = config
        self.parameters = parameters
        self.rule = rule

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """See `LocalRule.begin`."""

    def gradients(self, backward: Callable[[], Tensor]) -> Tensor:
        """See `LocalRule.gradients`; ``backward`` is the method's."""
        return backward()

    def transform_gradients(self) -> None:
        """See `LocalRule.transform_gradients`."""

    def after_step(self, learning_rate: float) -> None:
        """See `LocalRule.after_step`."""

    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return payloads to send beside the method's."""
        return {}

    def numbers(self) -> dict[str, float]:
        """See `LocalRule.numbers`."""
        return {}

    def state_dict(self) -> State:
        """See `LocalRule.state_dict`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `LocalRule.load_state_dict`."""
