"""Tensors as the pieces of a safetensors file, for a writer that copies nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CODES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL"},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
_ALIGNMENT = 8

Piece = bytes | memoryview


def safetensors_pieces(tensors: Mapping[str, NDArray[Any]]) -> list[Piece]:
    """Return what to write one after the other: the header, then every tensor's own memory.

    Joined, the pieces are a file that ``safetensors`` loads. (Its own writer returns a copy of
    everything, which would then be read once more for the digest.)

    Parameters
    ----------
    tensors : mapping of str to ndarray
        One that is contiguous and little-endian is not copied.

    Raises
    ------
    ValueError
        If the format has no word for a tensor's numbers.
    """
    header: dict[str, Any] = {}
    pieces: list[Piece] = []
    offset = 0
    # Wide numbers first, so that every tensor is aligned.
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):
        array = np.asarray(tensors[name], order="C")
        if array.dtype.name not in _CODES:
            raise ValueError(f"tensor '{name}' has numbers of the type {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        header[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        pieces.append(array.reshape(-1).view(np.uint8).data)
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *pieces]
