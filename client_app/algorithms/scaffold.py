"""Client half of `scaffold`: correct every gradient by control variates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from client_app.algorithms.base import LocalAlgorithm
from client_app.algorithms.steps import Accumulation
from client_app.methods.base import LocalRule
from client_app.parameters import AdapterParameters
from fedapp.adapter import Adapter, Array
from fedapp.codec import pack
from fedapp.config import RunConfig, Scalar
from fedapp.errors import UpdateRefused
from fedapp.state import State
from fedapp.variates import RANKS, add, in_factors_of, lift, zeros

DOWN, UP = "variate", "variate_change"  # as in the server half
ROUND, CONTINUE, CONTINUED = "scaffold_round", "scaffold_continue", "variate_round"


class Scaffold(LocalAlgorithm):
    """``y <- y - eta (g - c_i + c)`` at every local step, then a new ``c_i``.

    ``scaffold.variate`` says what the new one is:

    * ``gradients``: the mean of the local gradients g, before correction and clipping. With plain
      SGD at a constant rate that is what the paper's option II computes, but for rounding;
      it means the same under AdamW, whose input the corrected gradients then are.
    * ``displacement``: option II as printed, ``c_i - c + (x - y) / (K eta)``, where ``K eta`` is
      in general the displacement of a gradient of one (`client_app.algorithms.steps`): with
      momentum or a schedule, a mean of the gradients with the weights that they have in ``x - y``.

    Only ``c_i' - c_i`` leaves the site. c_i itself stays on its disk, where the method moves the
    basis as a lift (`fedapp.variates`).

    References
    ----------
    Karimireddy et al., arXiv 1910.06378, algorithm 1, lines 5 to 13.
    """

    keeps_state = True

    def __init__(self, config: RunConfig, parameters: AdapterParameters, rule: LocalRule) -> None:
        super().__init__(config, parameters, rule)
        self._kept: Mapping[str, Any] = {}
        self._round = self._continued = 0
        self._lifted: Adapter | None = None
        self._after: Adapter | None = None
        self._error = 0.0
        self._steps = Accumulation(rule.optimizer_settings())

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Look up this site's variate and write both in the factors received."""
        self._round = int(settings[ROUND])
        self._find(int(settings[CONTINUE]))
        self._model = self.parameters.read()
        nothing = zeros(self._model, self.rule.contributes)
        self._shared = _checked(received, nothing)
        self._own = nothing if self._lifted is None else in_factors_of(self._lifted, self._model)
        self._trained: list[Parameter] = []
        self._correction: list[Tensor] = []
        self._start: list[Tensor] = []
        for name, parameter in self.parameters.named_arrays():
            if name in nothing.tensors:
                own, shared = self._own.tensors[name], self._shared.tensors[name]
                self._trained.append(parameter)
                self._correction.append(torch.tensor(shared - own, device=parameter.device))
                self._start.append(parameter.detach().clone())
        self._sums = [torch.zeros_like(start) for start in self._start]

    def _find(self, wanted: int) -> None:
        """Take the variate of round ``wanted`` from what is kept; there are the last two."""
        for name, of_round in (("variate", "round"), ("before", "before_round")):
            if wanted and self._kept.get(of_round) == wanted:
                self._lifted, self._continued = self._kept[name], wanted

    @torch.no_grad()
    def transform_gradients(self) -> None:
        """Note the gradients and add ``c - c_i``."""
        for parameter, total, correction in zip(
            self._trained, self._sums, self._correction, strict=True
        ):
            if parameter.grad is None:  # no path from the task's loss
                parameter.grad = correction.clone()
            else:
                total += parameter.grad
                parameter.grad += correction

    def after_step(self, learning_rate: float) -> None:
        """Count the step."""
        self._steps.add(learning_rate)

    @torch.no_grad()
    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return ``c_i' - c_i``."""
        names = list(self._own.tensors)
        trained = [name for name, _ in self.parameters.named_arrays() if name in names]
        fresh: dict[str, Array] = {}
        for name, value in zip(trained, self._fresh(), strict=True):
            fresh[name] = value.cpu().numpy()
        own = self._own.tensors
        change = Adapter({}, {name: fresh[name] - own[name] for name in names})
        # What the coordinator adds to c is added to c_i, so that a codec's rounding is in both.
        codec = self.config.federation.codec
        added = change if codec == "fp32" else pack(change, codec).unpack()
        if self.rule.moves_basis:
            added = lift(added, self._model)
        cap = self.config.scaffold.rank_cap or RANKS * self.config.lora.rank
        self._after, self._error = add(self._lifted, [(1.0, added)], cap)
        return {UP: change}

    def _fresh(self) -> list[Tensor]:
        if self.config.scaffold.variate == "gradients":
            return [total / max(1, self._steps.count) for total in self._sums]
        length = self._steps.displacement
        return [
            (start - parameter) / length - correction
            for start, parameter, correction in zip(
                self._start, self._trained, self._correction, strict=True
            )
        ]

    def numbers(self) -> dict[str, float]:
        """Return ``variate_round`` and ``own_variate_error``.

        The round whose variate the site continued from (0: from zero), and what the rank cap took
        from the new one, as a share of its norm.
        """
        return {CONTINUED: float(self._continued), "own_variate_error": self._error}

    def state_dict(self) -> State:
        """The new variate, and the one before, for when this reply does not arrive."""
        state: State = {"round": self._round, "before_round": self._continued}
        if self._after is not None:
            state["variate"] = self._after
        if self._lifted is not None:
            state["before"] = self._lifted
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what was kept; `begin` says which of it counts."""
        self._kept = state


def _checked(received: Mapping[str, Adapter], template: Adapter) -> Adapter:
    variate = received.get(DOWN)
    if variate is None or variate.layout() != template.layout():
        problem = "is missing" if variate is None else "has not the layout of what is trained"
        raise UpdateRefused(f"the coordinator's payload '{DOWN}' {problem}", reason="wrong-layout")
    return variate
