"""The trainable part of a model: LoRA pairs with their scaling, plus full tensors (heads).

Names are module paths of the base model (``encoder.layer.0.attention.self.query``) for pairs and
parameter paths (``classifier.weight``) for tensors, always kept in sorted order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LoraPair:
    """One LoRA pair; its contribution to a weight is ``scaling * b_mr @ a_rn``.

    Attributes
    ----------
    b_mr : ndarray, shape (out_features, r)
    a_rn : ndarray, shape (r, in_features)
    scaling : float
        ``lora.alpha / lora.rank``.
    """

    b_mr: Array
    a_rn: Array
    scaling: float

    @property
    def rank(self) -> int:
        """Number of rows of A."""
        return int(self.a_rn.shape[0])


class Adapter:
    """An ordered, immutable set of LoRA pairs and full tensors.

    Parameters
    ----------
    pairs : mapping of str to LoraPair
    tensors : mapping of str to ndarray
        Fully trained tensors, such as a classification head.
    """

    def __init__(
        self, pairs: Mapping[str, LoraPair], tensors: Mapping[str, Array] | None = None
    ) -> None:
        self.pairs: dict[str, LoraPair] = dict(sorted(pairs.items()))
        self.tensors: dict[str, Array] = dict(sorted((tensors or {}).items()))

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield ``(name, array)`` in wire order: each pair's A and B, then the tensors."""
        for name, pair in self.pairs.items():
            yield f"{name}.lora_A", pair.a_rn
            yield f"{name}.lora_B", pair.b_mr
        yield from self.tensors.items()

    def map(self, function: Callable[[str, Array], Array]) -> Adapter:
        """Return an adapter of the same layout with every array replaced by ``function``."""
        return Adapter(
            {
                name: LoraPair(
                    b_mr=function(f"{name}.lora_B", pair.b_mr),
                    a_rn=function(f"{name}.lora_A", pair.a_rn),
                    scaling=pair.scaling,
                )
                for name, pair in self.pairs.items()
            },
            {name: function(name, tensor) for name, tensor in self.tensors.items()},
        )

    def layout(self) -> dict[str, object]:
        """Names, shapes and scalings: what two adapters must share to be combined."""
        return {
            "pairs": {
                # float: 2 and 2.0 are one scaling but two JSON texts
                name: [list(pair.b_mr.shape), list(pair.a_rn.shape), float(pair.scaling)]
                for name, pair in self.pairs.items()
            },
            "tensors": {name: list(tensor.shape) for name, tensor in self.tensors.items()},
        }

    def layout_digest(self) -> str:
        """SHA-256 of `layout`."""
        return layout_digest(self.layout())

    def digest(self) -> str:
        """SHA-256 of layout and content (fp32 bytes): equal digests, bit-identical adapters."""
        sha = hashlib.sha256(self.layout_digest().encode())
        for _, array in self.arrays():
            sha.update(np.ascontiguousarray(array, dtype="<f4").data)
        return sha.hexdigest()

    def is_finite(self) -> bool:
        """Whether no array holds NaN or Inf."""
        return all(bool(np.isfinite(array).all()) for _, array in self.arrays())

    @property
    def size(self) -> int:
        """Number of trainable numbers."""
        return sum(array.size for _, array in self.arrays())


def layout_digest(layout: Mapping[str, object]) -> str:
    """SHA-256 of what `Adapter.layout` returns."""
    return hashlib.sha256(json.dumps(layout).encode()).hexdigest()
