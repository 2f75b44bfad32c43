"""Models that are known to be useless, by which a site calibrates its scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.seeds import derive_seed


def useless(own: Adapter, number: int, seed: int) -> Iterator[Adapter]:
    """Yield the own model with all signs flipped, then models of random numbers of its size.

    A fresh initialisation of LoRA would be no model of its own: its products are zero.

    Parameters
    ----------
    own : Adapter
    number : int
        Models in all, at least 1.
    seed : int
        Of this site in this round.
    """
    yield Adapter(
        {name: LoraPair(-pair.b_mr, pair.a_rn, pair.scaling) for name, pair in own.pairs.items()},
        {name: -tensor for name, tensor in own.tensors.items()},
    )
    for index in range(number - 1):
        yield own.map(partial(_like, derive_seed(seed, "null", index)))


def _like(seed: int, name: str, array: Array) -> Array:
    """Return normal numbers of the array's root mean square."""
    size = math.sqrt(float(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0
    rng = np.random.default_rng(derive_seed(seed, name))
    return (size * rng.standard_normal(array.shape)).astype(np.float32)
