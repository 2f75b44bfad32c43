"""Many numbers told in four: what a site reports of a vector."""

from __future__ import annotations

import numpy as np
from torch import Tensor

MOST = 2**18
"""Numbers that are looked at; of a longer vector, this many evenly spaced ones."""
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def evenly(size: int, most: int = MOST) -> slice:
    """Return which of ``size`` numbers to look at."""
    return slice(None, None, max(1, -(-size // most)))


def distribution(name: str, values: Tensor) -> dict[str, float]:
    """Return ``NAME_mean`` and the quantiles ``NAME_p10``, ``_p50``, ``_p90``; of nothing, none."""
    numbers = values.detach().double().cpu().numpy()
    if not numbers.size:
        return {}
    found = np.quantile(numbers, list(QUANTILES.values()))
    quantiles = {f"{name}_{key}": float(q) for key, q in zip(QUANTILES, found, strict=True)}
    return {f"{name}_mean": float(numbers.mean()), **quantiles}
