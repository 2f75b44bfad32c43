"""pFLAlign on plain Python floats, number by number, as an oracle for the vectorised one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Gradient = Callable[[int, list[float]], Sequence[float]]


@dataclass
class Coordinate:
    """One number of the model at one site."""

    theta: float = 0.0
    delta: float = 0.0
    v: float = 0.0
    p: float = 0.0
    lifetime: int = 0
    alphas: list[float] = field(default_factory=list)
    gammas: list[float] = field(default_factory=list)


@dataclass
class Loop:
    """The algorithm's settings, by the names that they have in METHODS and in the paper."""

    eta: float = 0.1
    beta: float = 0.9
    eps: float = 1e-12
    correct: bool = True
    direct: bool = False
    local_update: bool = True
    personalisation: bool = True
    gate: str = "coordinate"

    def round(
        self, site: Sequence[Coordinate], shared: Sequence[float], gradient: Gradient, steps: int
    ) -> None:
        """Train from the shared model; ``gradient`` gets the step from 0 and the model."""
        m = [0.0] * len(site)
        for x, received in zip(site, shared, strict=True):
            x.theta = received + (x.delta if self.personalisation else 0.0)
        for t in range(1, steps + 1):
            gs = gradient(t - 1, [x.theta for x in site])
            for i, x in enumerate(site):
                x.lifetime += 1
                m[i] = self.beta * m[i] + (1 - self.beta) * gs[i]
                x.v = self.beta * x.v + (1 - self.beta) * gs[i] ** 2
            hats = [self._hats(m[i], x, t, self.correct) for i, x in enumerate(site)]
            for i, x in enumerate(site):
                x.p = self._factor(x, m[i], *hats[i], gs[i], t)
                gamma = self._gamma(i, site, hats)
                x.gammas.append(gamma)
                x.theta -= self.eta * (x.p if self.local_update else 1.0) * gs[i]
                if self.personalisation:
                    x.theta -= gamma * x.delta / steps
        for x, received in zip(site, shared, strict=True):
            x.delta = x.theta - received if self.personalisation else 0.0

    def _hats(self, m: float, x: Coordinate, t: int, correct: bool) -> tuple[float, float]:
        if not correct:
            return m, x.v
        return m / (1 - self.beta**t), x.v / (1 - self.beta**x.lifetime)

    def _factor(self, x: Coordinate, raw: float, m: float, v: float, g: float, t: int) -> float:
        if not self.direct:
            alpha = 1 - (1 - self.beta) * g * g / (v + self.eps)
            x.alphas.append(alpha)
            return alpha * x.p + (1 - self.beta) * m * m / (v + self.eps)
        m, v = self._hats(raw, x, t, True)
        b = self.beta
        rho = (1 - b) ** 2 * (1 - b ** (2 * t)) / ((1 - b**t) ** 2 * (1 - b * b))
        s = max(0.0, v - m * m) / (1 - min(rho, 0.9999))
        return m * m / (m * m + s) if m * m + s > 0 else 0.0

    def _gamma(
        self, i: int, site: Sequence[Coordinate], hats: Sequence[tuple[float, float]]
    ) -> float:
        m, v = hats[i]
        product = m * site[i].delta
        sign = (product > 0) - (product < 0)
        if self.gate == "coordinate":
            wide = math.sqrt(max(0.0, 2 * (v - m * m)) + self.eps)
            return 0.5 + 0.5 * math.erf(abs(m) / wide) * sign
        if self.gate == "hard":
            return 0.5 + 0.5 * sign
        if self.gate == "scalar":
            dot = sum(h[0] * x.delta for h, x in zip(hats, site, strict=True))
            norms = math.dist([h[0] for h in hats], [0.0] * len(hats)) * math.dist(
                [x.delta for x in site], [0.0] * len(site)
            )
            return 0.5 + 0.5 * dot / norms if norms else 0.5
        return {"none": 0.0, "full": 1.0}[self.gate]
