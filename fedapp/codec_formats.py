"""The three number formats of the wire: fp32, bf16 bit patterns, int8 with per-row scales.

All little-endian. fp32 and bf16 lay the arrays end to end. int8 has all scales first (fp32, so
that they are aligned), then all values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Codec = Literal["fp32", "bf16", "int8"]
CODECS: tuple[str, ...] = get_args(Codec)
Shape = tuple[int, ...]
Bytes = NDArray[np.uint8]
Array = NDArray[np.float32]

_LARGEST = np.finfo(np.float32).max


def count(shape: Shape) -> int:
    """Number of elements, in Python integers: a forged shape cannot overflow."""
    return math.prod(shape)


def rows(shape: Shape) -> int:
    """Rows that get a scale each in int8: the first axis of a matrix, else one."""
    return shape[0] if len(shape) > 1 else 1


def encoded_size(codec: Codec, shapes: Iterable[Shape]) -> int:
    """Length in bytes of arrays of these shapes."""
    if codec == "int8":
        return sum(4 * rows(shape) + count(shape) for shape in shapes)
    return sum(count(shape) for shape in shapes) * (4 if codec == "fp32" else 2)


def write(codec: Codec, arrays: Sequence[NDArray[np.floating]], flat: Bytes) -> None:
    """Encode ``arrays`` end to end into ``flat``, which has exactly their encoded size."""
    if codec == "int8":
        _write_int8(arrays, flat)
        return
    target = flat.view("<f4" if codec == "fp32" else "<u2")
    start = 0
    for array in arrays:
        stop = start + array.size
        values = array.reshape(-1)
        target[start:stop] = values if codec == "fp32" else to_bf16(values)
        start = stop


def read(codec: Codec, flat: Bytes, shapes: Iterable[Shape]) -> list[Array]:
    """Decode read-only fp32 arrays of these shapes; with fp32 they are views of ``flat``."""
    if codec == "int8":
        arrays = _read_int8(flat, list(shapes))
    else:
        source = flat.view("<f4" if codec == "fp32" else "<u2")
        if not source.flags.aligned:  # a slice of a larger buffer may start anywhere
            source = source.copy()
        arrays, start = [], 0
        for shape in shapes:
            stop = start + count(shape)
            values = source[start:stop]
            arrays.append((values if codec == "fp32" else from_bf16(values)).reshape(shape))
            start = stop
    for array in arrays:
        array.flags.writeable = False
    return arrays


def to_bf16(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Round to bfloat16, nearest even, and return the bit patterns; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    # Adding to a NaN's mantissa could carry into the exponent; keep its top bits and quiet it.
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16(patterns: NDArray[np.uint16]) -> Array:
    """Expand bfloat16 bit patterns to fp32, exactly."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _write_int8(arrays: Sequence[NDArray[np.floating]], flat: Bytes) -> None:
    scale_bytes = 4 * sum(rows(array.shape) for array in arrays)
    scales, values = flat[:scale_bytes].view("<f4"), flat[scale_bytes:].view(np.int8)
    row = start = 0
    for array in arrays:
        height = rows(array.shape)
        matrix = np.asarray(array, np.float32).reshape(height, -1)
        scale = _row_scales(matrix)
        usable = np.isfinite(scale) & (scale > 0)
        divisor = np.where(usable, scale, 1)[:, None]
        quantised = np.where(usable[:, None], np.rint(matrix.astype(np.float64) / divisor), 0)
        scales[row : row + height] = scale
        values[start : start + array.size] = quantised.reshape(-1).astype(np.int8)
        row, start = row + height, start + array.size


def _row_scales(matrix: Array) -> Array:
    """Smallest fp32 with ``127 * scale >= max |row|``; non-finite if the row is."""
    exact = np.abs(matrix).max(axis=1).astype(np.float64) / 127
    scale = exact.astype(np.float32)
    # Rounded up, so that no value needs more than 127 steps and a tiny row keeps a positive scale,
    upwards = np.nextafter(scale, np.float32(np.inf))
    scale = np.where(scale < exact, upwards, scale)
    # but not so far that 127 steps overflow.
    too_large = np.isfinite(scale) & (127 * scale.astype(np.float64) > _LARGEST)
    safe: Array = np.where(too_large, np.nextafter(scale, np.float32(0)), scale)
    return safe


def _read_int8(flat: Bytes, shapes: list[Shape]) -> list[Array]:
    scale_bytes = 4 * sum(rows(shape) for shape in shapes)
    scales = flat[:scale_bytes].view("<f4")
    values = flat[scale_bytes:].view(np.int8)
    arrays: list[Array] = []
    row = start = 0
    for shape in shapes:
        height, size = rows(shape), count(shape)
        matrix = values[start : start + size].reshape(height, -1).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # a non-finite scale must show
            matrix *= scales[row : row + height, None]
        arrays.append(matrix.reshape(shape))
        row, start = row + height, start + size
    return arrays
