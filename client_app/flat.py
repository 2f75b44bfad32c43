"""Some arrays of a model as one vector, worked on a span at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from fedapp.adapter import Array

CPU_SPAN, CUDA_SPAN = 2**15, 2**20
"""Numbers of a span: half a dozen vectors of them fit into a core's cache; on a GPU, where every
call costs a launch, into a few megabytes."""


class Piece(NamedTuple):
    """Numbers ``start`` to ``stop`` of an array, row after row."""

    array: Parameter
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return these numbers of a tensor that has the array's shape; they share its memory."""
        whole = self.stop - self.start == tensor.numel()
        return tensor if whole else tensor.view(-1)[self.start : self.stop]


@dataclass(frozen=True)
class Span:
    """Consecutive numbers of the vector and the pieces of arrays that they stand for."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    def of(self, vector: Tensor) -> Tensor:
        """Return these numbers of a whole vector; they share its memory."""
        return vector[self.start : self.stop]

    def shaped(self, numbers: Tensor) -> list[Tensor]:
        """Return the span's numbers in the shapes of its pieces; they share the memory."""
        lengths = [piece.stop - piece.start for piece in self.pieces]
        parts = numbers[: self.stop - self.start].split_with_sizes(lengths)
        values = self.values()
        return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]

    def values(self) -> list[Tensor]:
        """Return the pieces of the arrays themselves."""
        return [piece.of(piece.array.detach()) for piece in self.pieces]

    def gradients(self) -> list[Tensor]:
        """Return the pieces of the gradients; one that there is not becomes zero."""
        return [piece.of(_gradient(piece.array)) for piece in self.pieces]


class FlatArrays:
    """The vector of all numbers of some arrays, in their order.

    Parameters
    ----------
    named : sequence of (str, Parameter)
        At the same device.
    span : int, optional
        Most numbers of a span; by default what suits the device.

    Attributes
    ----------
    size : int
    spans : list of Span
        They cover the vector without overlap.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]], span: int | None = None) -> None:
        self.named = list(named)
        self.size = sum(array.numel() for _, array in self.named)
        self.device = self.named[0][1].device if self.named else torch.device("cpu")
        default = CUDA_SPAN if self.device.type == "cuda" else CPU_SPAN
        self.spans = list(self._spans(span or default))

    def _spans(self, most: int) -> Iterator[Span]:
        start = stop = 0
        pieces: list[Piece] = []
        for _, array in self.named:
            for first in range(0, array.numel(), most):
                length = min(most, array.numel() - first)
                if stop + length - start > most:
                    yield Span(start, stop, tuple(pieces))
                    start, pieces = stop, []
                pieces.append(Piece(array, first, first + length))
                stop += length
        if pieces:
            yield Span(start, stop, tuple(pieces))

    @property
    def longest(self) -> int:
        """Numbers of the longest span."""
        return max((span.stop - span.start for span in self.spans), default=0)

    def vector(self, arrays: Mapping[str, Array] | None = None) -> Tensor:
        """Return a new vector of these arrays, which must all be there; without any, of zeros."""
        vector = torch.zeros(self.size, device=self.device)
        if arrays is not None:
            for (name, _), part in zip(self.named, self._parts(vector), strict=True):
                part.copy_(torch.from_numpy(np.array(arrays[name], np.float32).ravel()))
        return vector

    def arrays(self, vector: Tensor) -> dict[str, Array]:
        """Return a vector's numbers as arrays by name; on a CPU they share its memory."""
        parts = self._parts(vector.cpu())
        return {
            name: part.view(array.shape).numpy()
            for (name, array), part in zip(self.named, parts, strict=True)
        }

    def _parts(self, vector: Tensor) -> Sequence[Tensor]:
        return vector.split_with_sizes([array.numel() for _, array in self.named])


def _gradient(array: Parameter) -> Tensor:
    if array.grad is None:  # no path from the task's loss
        array.grad = torch.zeros_like(array)
    return array.grad
