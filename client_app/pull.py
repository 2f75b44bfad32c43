"""A pull towards where numbers were: the gradient of ``mu/2 ||w - w_0||^2``."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter


class Pull:
    """Live parameters and where they are pulled to.

    Parameters
    ----------
    pairs : iterable of (Parameter, Tensor)
        w and w_0; no w_0 changes afterwards.
    """

    def __init__(self, pairs: Iterable[tuple[Parameter, Tensor]] = ()) -> None:
        self._pairs = tuple(pairs)

    @torch.no_grad()
    def add(self, weight: float) -> None:
        """Add ``weight (w - w_0)`` to the gradients; with a weight of 0 nothing is touched."""
        if not weight:
            return
        for parameter, target in self._pairs:
            pull = weight * (parameter - target)
            if parameter.grad is None:  # no path from the task's loss
                parameter.grad = pull
            else:
                parameter.grad += pull

    @torch.no_grad()
    def distance(self) -> float:
        """Return ``||w - w_0||``."""
        squares = [(array - target).double().square().sum() for array, target in self._pairs]
        return math.sqrt(sum(squares))
