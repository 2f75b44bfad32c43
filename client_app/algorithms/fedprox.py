"""Client half of `fedprox`: stay near what was received."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.algorithms.base import LocalAlgorithm
from client_app.pull import Pull
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

    _pull = Pull()

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Remember the received numbers; the live parameters hold them already."""
        self._pull = Pull(
            (parameter, parameter.detach().clone())
            for name, parameter in self.parameters.named_arrays()
            if self.rule.contributes(name)
        )

    def transform_gradients(self) -> None:
        """Add the penalty's gradient."""
        self._pull.add(self.config.fedprox.mu)

    def numbers(self) -> dict[str, float]:
        """``prox_distance``, that is ``||w - w_g||`` after training."""
        return {"prox_distance": self._pull.distance()}
