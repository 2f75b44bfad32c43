"""Client half of `ditto`: beside the shared model, a model of the site's own near it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from client_app.methods.base import LocalRule
from client_app.parameters import AdapterParameters
from client_app.pull import Pull
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.state import State


class Ditto(LocalRule):
    """Train w as in `fedavg`, then v on the same records; v alone is the personal model.

    v stays on the site's disk from round to round. It begins as what the site receives in its
    first round, or after it has lost its own. A round is twice the local work of `fedavg`.

    References
    ----------
    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization,
    arXiv 2012.04221, algorithm 1.
    """

    keeps_state = True
    _own: Adapter | None = None

    def apart(self) -> LocalRule:
        """Return the rule of v."""
        return OwnModel(self.config, self.parameters, self._own)

    def state_dict(self) -> State:
        """v, which is what the parameters hold after the second training."""
        return {"own": self.parameters.read()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self._own = state["own"]


class OwnModel(LocalRule):
    """``v <- v - eta (grad F_k(v) + lambda (v - w_g))``, with ``w_g`` as it was received.

    Parameters
    ----------
    config : RunConfig
    parameters : AdapterParameters
    kept : Adapter or None
        v after the site's last round.
    """

    def __init__(
        self, config: RunConfig, parameters: AdapterParameters, kept: Adapter | None
    ) -> None:
        super().__init__(config, parameters)
        self._kept, self._pull = kept, Pull()

    def start(self, received: Mapping[str, Adapter]) -> Adapter:
        """Return v."""
        return received["adapter"] if self._kept is None else self._kept

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Remember where the shared model was."""
        shared = dict(received["adapter"].arrays())
        self._pull = Pull(
            (parameter, torch.tensor(shared[name], device=parameter.device))
            for name, parameter in self.parameters.named_arrays()
        )

    def transform_gradients(self) -> None:
        """Add the penalty's gradient."""
        self._pull.add(self.config.ditto.lambda_)

    def numbers(self) -> dict[str, float]:
        """``own_distance``, that is ``||v - w_g||`` after training."""
        return {"own_distance": self._pull.distance()}
