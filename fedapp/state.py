"""Named state as tensors plus JSON, the two forms in which it is stored.

A state is a flat dict whose values are adapters, numpy arrays, or anything JSON can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, LoraPair

State = dict[str, Any]
Tensors = dict[str, NDArray[Any]]

_SEPARATOR = "/"


def split_state(state: Mapping[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Return ``(tensors, description)``; `join_state` is its inverse, bit for bit."""
    tensors: Tensors = {}
    described: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Adapter):
            described[key] = {"kind": "adapter", "layout": value.layout()}
            for name, array in value.arrays():
                tensors[f"{key}{_SEPARATOR}{name}"] = np.asarray(array, order="C")
        elif isinstance(value, np.ndarray):
            described[key] = {"kind": "array"}
            tensors[key] = np.asarray(value, order="C")  # keeps a 0-d array 0-d
        else:
            described[key] = {"kind": "json", "value": value}
    return tensors, described


def join_state(tensors: Mapping[str, NDArray[Any]], described: Mapping[str, Any]) -> State:
    """Rebuild a state from `split_state`.

    Raises
    ------
    KeyError, ValueError
        If a tensor is missing or does not have the described shape.
    """
    state: State = {}
    for key, entry in described.items():
        if entry["kind"] == "adapter":
            state[key] = _adapter(f"{key}{_SEPARATOR}", tensors, entry["layout"])
        elif entry["kind"] == "array":
            state[key] = tensors[key]
        else:
            state[key] = entry["value"]
    return state


def _adapter(
    prefix: str, tensors: Mapping[str, NDArray[Any]], layout: Mapping[str, Any]
) -> Adapter:
    def take(name: str, shape: list[int]) -> NDArray[Any]:
        tensor = tensors[prefix + name]
        if list(tensor.shape) != shape:
            raise ValueError(f"{prefix}{name} has shape {list(tensor.shape)}, expected {shape}")
        return tensor

    return Adapter(
        {
            name: LoraPair(
                b_mr=take(f"{name}.lora_B", b_shape),
                a_rn=take(f"{name}.lora_A", a_shape),
                scaling=scaling,
            )
            for name, (b_shape, a_shape, scaling) in layout["pairs"].items()
        },
        {name: take(name, shape) for name, shape in layout["tensors"].items()},
    )
