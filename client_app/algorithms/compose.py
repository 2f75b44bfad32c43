"""The local rule of a run: the method's, with the algorithm's hooks after each of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from client_app.algorithms.base import LocalAlgorithm
from client_app.methods.base import LocalRule
from client_app.parameters import AdapterParameters
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar, TrainSection
from fedapp.registry import ALGORITHMS, METHODS, load_half
from fedapp.state import State

_ALGORITHM = "algorithm."  # whose state it is: begin of names


def build_rule(config: RunConfig, parameters: AdapterParameters) -> LocalRule:
    """Return the rule by which a site trains under these settings."""
    rule: LocalRule = load_half(METHODS[config.method].client)(config, parameters)
    half: type[LocalAlgorithm] = load_half(ALGORITHMS[config.federation.algorithm].client)
    return rule if half is LocalAlgorithm else Composed(rule, half(config, parameters, rule))


class Composed(LocalRule):
    """A method's rule and an algorithm as one rule.

    Parameters
    ----------
    rule : LocalRule
    algorithm : LocalAlgorithm
    """

    def __init__(self, rule: LocalRule, algorithm: LocalAlgorithm) -> None:
        super().__init__(rule.config, rule.parameters)
        self.rule, self.algorithm = rule, algorithm
        self.moves_basis = rule.moves_basis
        self.personal, self.offset = rule.personal, rule.offset
        self.keeps_state = rule.keeps_state or algorithm.keeps_state

    def trainable(self, name: str) -> bool:
        """As the method says."""
        return self.rule.trainable(name)

    def contributes(self, name: str) -> bool:
        """As the method says."""
        return self.rule.contributes(name)

    def optimizer_settings(self) -> TrainSection:
        """As the method says."""
        return self.rule.optimizer_settings()

    def alone(self) -> LocalRule:
        """As the method says."""
        return self.rule.alone()

    def start(self, received: Mapping[str, Adapter]) -> Adapter:
        """As the method says."""
        return self.rule.start(received)

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Begin both."""
        self.rule.begin(received, settings, steps)
        self.algorithm.begin(received, settings, steps)

    def gradients(self, backward: Callable[[], Tensor]) -> Tensor:
        """Let the algorithm say where the method computes its gradients."""
        return self.algorithm.gradients(partial(self.rule.gradients, backward))

    def transform_gradients(self) -> None:
        """Let the method add its penalty, then the algorithm its correction."""
        self.rule.transform_gradients()
        self.algorithm.transform_gradients()

    def after_step(self, learning_rate: float) -> None:
        """Tell both."""
        self.rule.after_step(learning_rate)
        self.algorithm.after_step(learning_rate)

    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return the payloads of both."""
        return {**self.rule.finish(received), **self.algorithm.finish(received)}

    def apart(self) -> LocalRule | None:
        """As the method says; the algorithm is for the model that all share."""
        return self.rule.apart()

    def numbers(self) -> dict[str, float]:
        """Return the numbers of both."""
        return {**self.rule.numbers(), **self.algorithm.numbers()}

    def state_dict(self) -> State:
        """Return what both keep."""
        own = {f"{_ALGORITHM}{k}": v for k, v in self.algorithm.state_dict().items()}
        return {**self.rule.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        own = {k: v for k, v in state.items() if k.startswith(_ALGORITHM)}
        if of_method := {k: v for k, v in state.items() if k not in own}:
            self.rule.load_state_dict(of_method)
        if own:
            self.algorithm.load_state_dict({k.removeprefix(_ALGORITHM): own[k] for k in own})
