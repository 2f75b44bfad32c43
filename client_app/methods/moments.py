"""Moving moments of a gradient, and what pFLAlign reads off them (pure, on flat tensors).

With ``m <- beta m + (1 - beta) g`` and ``v <- beta v + (1 - beta) g^2``, of every number alone:

    factor   E[g]^2 / E[g^2], which is 1 where the gradient is sure and near 0 where it is noise
    gate     Pr[g has the sign of Delta] under g ~ N(m, v - m^2)

Everything works in place and in the scratch tensors that it is given, so that a step allocates
nothing. Bias correction replaces m and v by ``first m`` and ``second v`` of a `Scale`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_SHARE = 0.9999
"""Most that `noise_share` may be: at a round's first step it is 1, and nothing is known of s."""


class Scale(NamedTuple):
    """Factors of the bias correction of m and v."""

    first: float
    second: float


def bias_scale(beta: float, step: int, lifetime: int) -> Scale:
    """Return ``1 / (1 - beta^t)`` of m, which began at zero this round, and of v, which did not.

    Parameters
    ----------
    beta : float
    step : int
        Of the round, from 1.
    lifetime : int
        Steps since v was zero, this one included.
    """
    return Scale(1 / (1 - beta**step), 1 / (1 - beta**lifetime))


def update_moments(m: Tensor, v: Tensor, g: Tensor, beta: float) -> None:
    """Take a gradient into both moments."""
    m.lerp_(g, 1 - beta)
    v.mul_(beta).addcmul_(g, g, value=1 - beta)


def moving_factor(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, scale: Scale, beta: float, eps: float, spare: Tensor
) -> Tensor:
    """Take one step of ``P <- alpha P + (1 - beta) m^2 / (v + eps)``; return alpha.

    ``alpha = 1 - (1 - beta) g^2 / (v + eps)`` lies in [0, 1], because v has taken g. So P is a
    mean of ``m^2 / g^2`` whose weights are the squares of the gradients, with the fixed point
    ``m^2 / v``: 1 for a constant gradient. Of gradients without a mean m is not zero either;
    ``E[m^2] / E[g^2]`` is then ``(1 - beta) / (1 + beta)``, about 0.05, and P not much more.

    Parameters
    ----------
    p : Tensor, shape (d,)
        Is changed.
    g : Tensor, shape (d,)
        The gradient that the moments took last; becomes alpha.
    m, v : Tensor, shape (d,)
    scale : Scale
    beta, eps : float
    spare : Tensor, shape (d,)
        Is overwritten.

    References
    ----------
    pFLAlign, arXiv 2605.02143, algorithm 1.
    """
    torch.mul(v, scale.second, out=spare).add_(eps)
    alpha = g.mul_(g).div_(spare).mul_(beta - 1).add_(1).clamp_min_(0)  # below 0 by rounding alone
    spare.reciprocal_().mul_(m)
    p.mul_(alpha).addcmul_(m, spare, value=(1 - beta) * scale.first**2)
    return alpha


def noise_share(beta: float, step: int) -> float:
    """Return rho: the variance of the corrected m over that of a single gradient."""
    power: float = beta**step
    return (1 - beta) * (1 + power) / ((1 + beta) * (1 - power))


def direct_factor(
    p: Tensor, m: Tensor, v: Tensor, scale: Scale, beta: float, step: int, spare: Tensor
) -> None:
    """Write ``m^2 / (m^2 + s)`` into p, with ``s = (v - m^2) / (1 - rho)``; 0 where both are 0.

    The moments are always corrected, without which rho means nothing.

    References
    ----------
    Balles and Hennig, Dissecting Adam, arXiv 1705.07774 (SVAG).
    """
    rho = min(noise_share(beta, step), LARGEST_SHARE)
    torch.mul(m, scale.first, out=p).square_()
    torch.mul(v, scale.second, out=spare).sub_(p).clamp_min_(0).div_(1 - rho).add_(p)
    p.div_(spare.clamp_min_(torch.finfo(p.dtype).tiny))


def sign_probability(
    m: Tensor, v: Tensor, delta: Tensor, scale: Scale, eps: float, out: Tensor, spare: Tensor
) -> Tensor:
    """Write ``Pr[g has the sign of Delta]`` for ``g ~ N(m, v - m^2)`` into ``out``; return it.

    That is ``1/2 + 1/2 erf(|m| / sqrt(2 (v - m^2) + eps)) sign(m Delta)``: 1/2 where Delta is zero.
    """
    torch.mul(v, scale.second, out=out).addcmul_(m, m, value=-(scale.first**2))
    out.clamp_min_(0).mul_(2).add_(eps).rsqrt_().mul_(m).mul_(scale.first)
    return out.mul_(torch.sgn(delta, out=spare)).erf_().add_(1).mul_(0.5)


def sign_agreement(m: Tensor, delta: Tensor, out: Tensor, spare: Tensor) -> Tensor:
    """Write 1 where the mean gradient has the sign of Delta, 0 where the other, 1/2 at zero."""
    torch.sgn(m, out=out).mul_(torch.sgn(delta, out=spare))
    return out.add_(1).mul_(0.5)


def cosine_gate(m: Tensor, delta: Tensor) -> Tensor:
    """Return ``1/2 + 1/2 cos(m, Delta)``, one number for the whole vector; 1/2 if one is zero."""
    norms = torch.linalg.vector_norm(m) * torch.linalg.vector_norm(delta)
    cosine = torch.dot(m, delta) / norms.clamp_min(torch.finfo(m.dtype).tiny)
    gate: Tensor = (cosine + 1) / 2
    return gate
