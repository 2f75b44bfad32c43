"""Client half of `subspace-reg` (arXiv 2606.22724): stay near the shared product and basis.

Beside the task's loss, with ``P = B_g`` and ``Q = A_g`` received and ``DW_g = s P Q``, minimise

    mu/2 ||s B A - DW_g||_F^2 + alpha/2 ||B - B_g||_F^2 + lambda/2 (||A||_F^2 + ||B||_F^2).

Its gradient is added in closed form, so no graph is built, and by the difference form
``B A - P Q = (B - P) A + P (A - Q)``, which is exact where ``||BA||^2 + ||PQ||^2 - 2<BA, PQ>``
cancels to nothing in fp32. Nothing of size m x n is formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from client_app.methods.base import LocalRule
from client_app.parameters import AdapterParameters, LivePair
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar


def penalty_gradients(
    b_kmr: Tensor,
    a_krn: Tensor,
    p_kmr: Tensor,
    q_krn: Tensor,
    scaling: float,
    mu: float,
    alpha: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Gradient of the penalty with respect to B and A, for ``k`` pairs of one shape.

    With ``E = B A - P Q``: ``grad_B = mu s^2 E A^T + alpha (B - P) + lambda B`` and
    ``grad_A = mu s^2 B^T E + lambda A``.

    Parameters
    ----------
    b_kmr, a_krn : Tensor, shapes (k, m, r) and (k, r, n)
        The pairs being trained.
    p_kmr, q_krn : Tensor, same shapes
        The received pairs.
    scaling : float
        ``s``.
    mu, alpha, lambda_ : float
        The weights of the three terms.

    Returns
    -------
    grad_b_kmr, grad_a_krn : Tensor
        Cost ``O(k r^2 (m + n))``.
    """
    db_kmr, da_krn = b_kmr - p_kmr, a_krn - q_krn
    weight, a_knr, b_krm = mu * scaling * scaling, a_krn.mT, b_kmr.mT
    grad_b = db_kmr @ (a_krn @ a_knr) + p_kmr @ (da_krn @ a_knr)
    grad_a = (b_krm @ db_kmr) @ a_krn + (b_krm @ p_kmr) @ da_krn
    grad_b = weight * grad_b + alpha * db_kmr + lambda_ * b_kmr
    return grad_b, weight * grad_a + lambda_ * a_krn


def penalty_value(
    b_kmr: Tensor,
    a_krn: Tensor,
    p_kmr: Tensor,
    q_krn: Tensor,
    scaling: float,
    mu: float,
    alpha: float,
    lambda_: float,
) -> float:
    """The penalty of ``k`` pairs, summed; arguments as in `penalty_gradients`, fp64 inside.

    ``||L R||_F^2 = sum((L^T L) o (R R^T))`` with ``L = [B - P, P]`` and ``R = [A; A - Q]``.
    """
    b_kmr, a_krn, p_kmr, q_krn = (x.double() for x in (b_kmr, a_krn, p_kmr, q_krn))
    db_kmr = b_kmr - p_kmr
    left = torch.cat([db_kmr, p_kmr], dim=-1)
    right = torch.cat([a_krn, a_krn - q_krn], dim=-2)
    product = ((left.mT @ left) * (right @ right.mT)).sum().clamp(min=0)
    size = b_kmr.square().sum() + a_krn.square().sum()
    total = mu * scaling * scaling * product + alpha * db_kmr.square().sum() + lambda_ * size
    return float(total) / 2


@dataclass(frozen=True)
class _Group:
    """Pairs of one shape and scaling, stacked so that a penalty takes a handful of calls."""

    b: list[nn.Parameter]
    a: list[nn.Parameter]
    p_kmr: Tensor
    q_krn: Tensor
    scaling: float

    def stacked(self) -> tuple[Tensor, Tensor]:
        return torch.stack([*self.b]), torch.stack([*self.a])


class SubspaceReg(LocalRule):
    """Add the penalty's exact gradient once an optimiser step; cap the change at the end."""

    moves_basis = True

    def __init__(self, config: RunConfig, parameters: AdapterParameters) -> None:
        super().__init__(config, parameters)
        setting = config.subspace_reg
        share = 1 / max(1, len(parameters.pairs)) if setting.average_layers else 1.0
        self._weights = (setting.mu * share, setting.alpha * share, setting.lambda_ * share)
        self._groups: list[_Group] = []
        self._numbers: dict[str, float] = {}

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Keep a copy of the received pairs, which the parameters hold at this point."""
        by_shape: dict[object, list[LivePair]] = {}
        for pair in self.parameters.pairs.values():
            key = (pair.b_mr.shape, pair.a_rn.shape, pair.scaling)
            by_shape.setdefault(key, []).append(pair)
        self._groups = [
            _Group(
                b=[pair.b_mr for pair in pairs],
                a=[pair.a_rn for pair in pairs],
                p_kmr=torch.stack([pair.b_mr.detach() for pair in pairs]),
                q_krn=torch.stack([pair.a_rn.detach() for pair in pairs]),
                scaling=pairs[0].scaling,
            )
            for pairs in by_shape.values()
        ]

    @torch.no_grad()
    def transform_gradients(self) -> None:
        """Add the penalty's gradient to the task's."""
        if not any(self._weights):
            return
        for group in self._groups:
            grad_b, grad_a = penalty_gradients(
                *group.stacked(), group.p_kmr, group.q_krn, group.scaling, *self._weights
            )
            for parameters, gradients in ((group.b, grad_b), (group.a, grad_a)):
                for parameter, gradient in zip(parameters, gradients.unbind(), strict=True):
                    if parameter.grad is None:  # no path from the task's loss
                        parameter.grad = gradient
                    else:
                        parameter.grad += gradient

    @torch.no_grad()
    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return the trained adapter, its change scaled down to ``norm_cap`` if it is longer."""
        self._numbers["penalty"] = sum(
            penalty_value(*group.stacked(), group.p_kmr, group.q_krn, group.scaling, *self._weights)
            for group in self._groups
        )
        trained, start = self.parameters.read(), received["adapter"]
        before = dict(start.arrays())
        change = {name: array - before[name] for name, array in trained.arrays()}
        norm = float(np.sqrt(sum(np.square(d, dtype=np.float64).sum() for d in change.values())))
        self._numbers["change_norm"] = norm
        cap = self.config.subspace_reg.norm_cap
        if cap and norm > cap:
            factor = np.float32(cap / norm)
            trained = trained.map(lambda name, _: before[name] + factor * change[name])
        return {"adapter": trained}

    def numbers(self) -> dict[str, float]:
        """``penalty`` (value after training) and ``change_norm`` (before the cap)."""
        return self._numbers
