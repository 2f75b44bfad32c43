"""Client half of `fedsam`: descend by the gradient of a point uphill."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from client_app.algorithms.base import LocalAlgorithm

_LEAST = 1e-12  # a gradient of zero climbs nowhere


class FedSam(LocalAlgorithm):
    """Step by the gradient at ``w + rho g / ||g||``, with ``g`` the gradient at ``w``.

    ``g`` is the task's, of all that is trained, as one vector; both points see the same batch and
    the same dropout. A method's penalty is added at ``w`` itself. Every step costs two passes.

    References
    ----------
    Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, arXiv 2206.02618,
    algorithm 1; Foret et al., arXiv 2010.01412, eqs. 2 and 3.
    """

    def gradients(self, backward: Callable[[], Tensor]) -> Tensor:
        """Compute the gradients uphill; returns the loss at ``w``."""
        rho = self.config.fedsam.rho
        if not rho:
            return backward()
        arrays: list[Tensor] = [array for _, array in self.parameters.named_arrays()]
        cards = {a.device for a in arrays if a.device.type == "cuda"}
        with torch.random.fork_rng(devices=list(cards)):
            loss = backward()
        trained = [a for a in arrays if a.grad is not None]
        with torch.no_grad():
            before = [a.detach().clone() for a in trained]
            climb = [a.grad for a in trained if a.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(climb)))
            torch._foreach_mul_(climb, rho / (norm + _LEAST))
            torch._foreach_add_(trained, climb)
            torch._foreach_zero_(climb)
        backward()
        with torch.no_grad():
            torch._foreach_copy_(trained, before)
        return loss
