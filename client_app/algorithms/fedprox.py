"""Client half of `fedprox`: stay near what was received."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from client_app.algorithms.base import LocalAlgorithm
from fedapp.adapter import Adapter
from fedapp.config import Scalar


class FedProx(LocalAlgorithm):
    """Add ``mu (w - w_g)``, the gradient of ``mu/2 ||w - w_g||^2``, to the gradients.

    ``w`` is every number that the site contributes, factors and heads, and ``w_g`` what it
    received of it. The target of a B that begins at zero every round is zero.

    References
    ----------
    Li et al., Federated Optimization in Heterogeneous Networks, arXiv 1812.06127, eq. 2.
    """

    _pairs: tuple[tuple[Parameter, Tensor], ...] = ()

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Remember the received numbers; the live parameters hold them already."""
        self._pairs = tuple(
            (parameter, parameter.detach().clone())
            for name, parameter in self.parameters.named_arrays()
            if self.rule.contributes(name)
        )

    @torch.no_grad()
    def transform_gradients(self) -> None:
        """Add the penalty's gradient."""
        mu = self.config.fedprox.mu
        if not mu:
            return
        for parameter, start in self._pairs:
            pull = mu * (parameter - start)
            if parameter.grad is None:  # no path from the task's loss
                parameter.grad = pull
            else:
                parameter.grad += pull

    @torch.no_grad()
    def numbers(self) -> dict[str, float]:
        """``prox_distance``, that is ``||w - w_g||`` after training."""
        squares = [(parameter - start).double().square().sum() for parameter, start in self._pairs]
        return {"prox_distance": float(sum(squares)) ** 0.5}
