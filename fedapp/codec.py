"""An adapter as ONE flat array of bytes plus a JSON layout, in fp32, bf16 or int8."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp import codec_formats as formats
from fedapp.adapter import Adapter, LoraPair
from fedapp.codec_formats import CODECS, Codec, Shape
from fedapp.codec_layout import Layout, check_codec
from fedapp.errors import UpdateRefused

__all__ = ["CODECS", "Codec", "Layout", "Packed", "decode", "encode", "pack"]


@dataclass(frozen=True, eq=False)
class Packed:
    """An encoded adapter: one flat uint8 array and its layout."""

    array: NDArray[np.uint8]
    layout: Layout

    @property
    def nbytes(self) -> int:
        """Bytes of the flat array: what crosses the wire besides the small layout."""
        return int(self.array.nbytes)

    def unpack(self) -> Adapter:
        """Decode, see `decode`."""
        return decode(self.array, self.layout)


def pack(adapter: Adapter, codec: Codec = "fp32") -> Packed:
    """Encode ``adapter``, see `encode`."""
    return Packed(*encode(adapter, codec))


def encode(adapter: Adapter, codec: Codec = "fp32") -> tuple[NDArray[np.uint8], Layout]:
    """Turn an adapter into one flat, read-only uint8 array and its layout.

    Parameters
    ----------
    adapter : Adapter
    codec : {"fp32", "bf16", "int8"}
        fp32 is bit-exact. bf16 rounds to nearest even: relative error at most 2**-8 of a normal
        number. int8 has one fp32 scale per row (a 1-d tensor is one row), the row's largest
        magnitude over 127 rounded up: error at most half of it. NaN and Inf arrive as non-finite.

    Raises
    ------
    UpdateRefused
        If the adapter's shapes or names cannot be sent.
    """
    check_codec(codec)
    arrays = [array for _, array in adapter.arrays()]
    layout = Layout(codec, *_describe(adapter), digest="0" * 64)
    flat = np.empty(layout.nbytes, np.uint8)
    formats.write(codec, arrays, flat)
    flat.flags.writeable = False
    digest = hashlib.sha256(flat.data).hexdigest()
    return flat, Layout(codec, layout.pairs, layout.tensors, digest)


def decode(array: NDArray[np.uint8], layout: Layout) -> Adapter:
    """Turn `encode`'s result back into an adapter of fp32 arrays.

    With fp32 the arrays are read-only views of ``array``: nothing is copied.

    Raises
    ------
    UpdateRefused
        Reason ``wrong-dtype`` if ``array`` is not flat uint8, ``wrong-size`` if it is not as long
        as the layout says, ``wrong-digest`` if its bytes are not those that were sent.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
        got = f"{array.ndim}-d {array.dtype}" if isinstance(array, np.ndarray) else type(array)
        raise UpdateRefused(
            f"the payload must be one flat uint8 array, got {got}", reason="wrong-dtype"
        )
    if array.nbytes != layout.nbytes:
        raise UpdateRefused(
            f"the payload must have {layout.nbytes} bytes, got {array.nbytes}", reason="wrong-size"
        )
    flat = np.ascontiguousarray(array)
    digest = hashlib.sha256(flat.data).hexdigest()
    if digest != layout.digest:
        raise UpdateRefused(
            f"the payload's SHA-256 must be {layout.digest}, got {digest}; it was damaged or "
            "changed on the way",
            reason="wrong-digest",
        )
    shapes = layout.shapes()
    arrays = dict(zip(shapes, formats.read(layout.codec, flat, shapes.values()), strict=True))
    return Adapter(
        {
            name: LoraPair(arrays[f"{name}.lora_B"], arrays[f"{name}.lora_A"], scaling)
            for name, (_, _, scaling) in layout.pairs.items()
        },
        {name: arrays[name] for name in layout.tensors},
    )


def _describe(
    adapter: Adapter,
) -> tuple[dict[str, tuple[Shape, Shape, float]], dict[str, Shape]]:
    pairs = {
        name: (pair.b_mr.shape, pair.a_rn.shape, float(pair.scaling))
        for name, pair in adapter.pairs.items()
    }
    return pairs, {name: tensor.shape for name, tensor in adapter.tensors.items()}
