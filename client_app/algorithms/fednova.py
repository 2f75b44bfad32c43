"""Client half of `fednova`: tell by how much the local steps add up."""

from __future__ import annotations

from client_app.algorithms.base import LocalAlgorithm
from client_app.algorithms.steps import Accumulation
from client_app.methods.base import LocalRule
from client_app.parameters import AdapterParameters
from fedapp.config import RunConfig


class FedNova(LocalAlgorithm):
    """Report ``||a_i||_1``, the displacement of a gradient of one in units of the peak rate.

    With SGD and a constant rate it is the paper's: tau local steps, or with momentum rho
    ``(tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)``. Under a schedule a step counts by its
    rate over the peak rate; with AdamW it is the number of steps, see `Accumulation`.

    References
    ----------
    Wang et al., arXiv 2007.07481, section 4.
    """

    def __init__(self, config: RunConfig, parameters: AdapterParameters, rule: LocalRule) -> None:
        super().__init__(config, parameters, rule)
        self._steps = Accumulation(rule.optimizer_settings())

    def after_step(self, learning_rate: float) -> None:
        """Count the step."""
        self._steps.add(learning_rate)

    def numbers(self) -> dict[str, float]:
        """``accumulation``, that is ``||a_i||_1``."""
        return {"accumulation": self._steps.displacement / self.config.train.learning_rate}
