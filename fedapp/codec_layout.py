"""The JSON layout of a flat array: names, shapes, scalings, codec and digests, trusting nothing.

There are no offsets: both sides derive the positions, so there is none to forge. Everything about
a layout is checked before a byte is allocated for its arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedapp import codec_formats as formats
from fedapp.adapter import layout_digest
from fedapp.codec_formats import CODECS, Codec, Shape
from fedapp.errors import UpdateRefused
from fedapp.text import clean, shown

# Far above any real adapter, far below what hurts a server: bounds on what a peer can claim.
MAX_LAYOUT_CHARACTERS = 16 * 2**20
MAX_ARRAYS = 100_000
MAX_NAME_LENGTH = 512
MAX_DIMENSIONS = 8
MAX_NUMBERS = 2**36

_KEYS = {"codec", "pairs", "tensors", "nbytes", "layout_digest", "digest"}
_HEX = set("0123456789abcdef")


@dataclass(frozen=True)
class Layout:
    """What is needed to read a flat array; an existing Layout is always consistent.

    Attributes
    ----------
    codec : {"fp32", "bf16", "int8"}
    pairs : mapping of str to (shape of B, shape of A, scaling)
        In sorted order.
    tensors : mapping of str to shape
        In sorted order.
    digest : str
        SHA-256 of the flat array, in hexadecimal.

    Raises
    ------
    UpdateRefused
        If a name, shape, scaling or total is not that of an adapter.
    """

    codec: Codec
    pairs: Mapping[str, tuple[Shape, Shape, float]]
    tensors: Mapping[str, Shape]
    digest: str

    def __post_init__(self) -> None:
        check_codec(self.codec)
        _check_names(self.pairs, self.tensors)
        for name, (b_shape, a_shape, scaling) in self.pairs.items():
            _check_shape(f"{name}.lora_B", b_shape, dimensions=2)
            _check_shape(f"{name}.lora_A", a_shape, dimensions=2)
            if b_shape[1] != a_shape[0]:
                raise UpdateRefused(
                    f"pair '{name}' has B {list(b_shape)} and A {list(a_shape)}; "
                    "B's columns must equal A's rows (the rank)",
                    reason="wrong-rank",
                )
            if type(scaling) is not float or not 0 < scaling < float("inf"):
                raise _malformed(f"the scaling of '{name}' must be positive, got {shown(scaling)}")
        for name, shape in self.tensors.items():
            _check_shape(name, shape)
        if self.numbers > MAX_NUMBERS:
            raise UpdateRefused(
                f"the layout claims {self.numbers} numbers, at most {MAX_NUMBERS} are accepted",
                reason="oversized",
            )
        if not isinstance(self.digest, str) or len(self.digest) != 64 or set(self.digest) - _HEX:
            raise _malformed(f"the digest must be 64 hexadecimal digits, got {shown(self.digest)}")

    def shapes(self) -> dict[str, Shape]:
        """Shape of every array by its name, in wire order (see ``Adapter.arrays``)."""
        shapes: dict[str, Shape] = {}
        for name, (b_shape, a_shape, _) in self.pairs.items():
            shapes[f"{name}.lora_A"] = a_shape
            shapes[f"{name}.lora_B"] = b_shape
        return {**shapes, **self.tensors}

    @cached_property
    def numbers(self) -> int:
        """How many numbers the adapter has."""
        return sum(formats.count(shape) for shape in self.shapes().values())

    @cached_property
    def nbytes(self) -> int:
        """Length of the flat array in bytes."""
        return formats.encoded_size(self.codec, self.shapes().values())

    def adapter_layout(self) -> dict[str, object]:
        """The same dict as ``Adapter.layout``."""
        return {
            "pairs": {n: [list(b), list(a), scaling] for n, (b, a, scaling) in self.pairs.items()},
            "tensors": {name: list(shape) for name, shape in self.tensors.items()},
        }

    @cached_property
    def layout_digest(self) -> str:
        """Equal to ``Adapter.layout_digest`` of the decoded adapter."""
        return layout_digest(self.adapter_layout())

    def to_json(self) -> str:
        """Return the layout as JSON; its size and digest are repeated for the receiver to check."""
        return json.dumps(
            {
                "codec": self.codec,
                **self.adapter_layout(),
                "nbytes": self.nbytes,
                "layout_digest": self.layout_digest,
                "digest": self.digest,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read `to_json`, trusting nothing.

        Raises
        ------
        UpdateRefused
            If the text is not exactly such a layout, claims absurd shapes or more than the
            limits allow, or contradicts itself in size or digest.
        """
        fields = _parse(text)
        layout = cls(
            codec=fields["codec"],
            pairs={name: _pair(name, value) for name, value in fields["pairs"].items()},
            tensors={name: _shape(name, value) for name, value in fields["tensors"].items()},
            digest=fields["digest"],
        )
        if type(fields["nbytes"]) is not int or fields["nbytes"] != layout.nbytes:
            raise UpdateRefused(
                f"the layout's arrays take {layout.nbytes} bytes as {layout.codec}, "
                f"but it claims {shown(fields['nbytes'])}",
                reason="wrong-size",
            )
        if fields["layout_digest"] != layout.layout_digest:
            raise UpdateRefused(
                f"the layout's digest is {layout.layout_digest}, "
                f"but it claims {shown(fields['layout_digest'])}",
                reason="wrong-digest",
            )
        return layout


def _parse(text: str) -> dict[str, Any]:
    if not isinstance(text, str):
        raise _malformed(f"it must be JSON text, got {type(text).__name__}")
    if len(text) > MAX_LAYOUT_CHARACTERS:
        raise UpdateRefused(
            f"the layout has {len(text)} characters, at most {MAX_LAYOUT_CHARACTERS} are accepted",
            reason="oversized",
        )
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"it is not valid JSON ({str(error)[:80]})") from None
    if not isinstance(fields, dict) or set(fields) != _KEYS:
        got = sorted(fields)[:10] if isinstance(fields, dict) else type(fields).__name__
        raise _malformed(f"it must have exactly the keys {sorted(_KEYS)}, got {got!r:.200}")
    for key in ("pairs", "tensors"):
        if not isinstance(fields[key], dict):
            raise _malformed(f"'{key}' must be an object, got {type(fields[key]).__name__}")
    return fields


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(items)
    if len(result) != len(items):  # JSON readers disagree on which one counts
        raise ValueError("a key occurs twice")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _shape(name: str, value: object) -> Shape:
    if not isinstance(value, list):
        raise _malformed(f"the shape of '{clean(name)}' must be a list, got {shown(value)}")
    return tuple(value)


def _pair(name: str, value: object) -> tuple[Shape, Shape, float]:
    if not isinstance(value, list) or len(value) != 3:
        raise _malformed(f"pair '{clean(name)}' must be [shape of B, shape of A, scaling]")
    return _shape(name, value[0]), _shape(name, value[1]), value[2]


def check_codec(codec: object) -> None:
    if codec not in CODECS:
        raise UpdateRefused(
            f"the codec must be one of {', '.join(CODECS)}, got {shown(codec)}",
            reason="wrong-codec",
        )


def _check_names(pairs: Mapping[str, object], tensors: Mapping[str, object]) -> None:
    if 2 * len(pairs) + len(tensors) > MAX_ARRAYS:
        raise UpdateRefused(
            f"the layout has {2 * len(pairs) + len(tensors)} arrays, at most {MAX_ARRAYS} are "
            "accepted",
            reason="oversized",
        )
    for names in (pairs, tensors):
        for name in names:
            if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
                raise _malformed(f"{shown(name)} is not an array's name")
        if list(names) != sorted(names):
            raise _malformed("its names must be in sorted order")
    taken = {f"{name}.lora_{side}" for name in pairs for side in "AB"}
    if not taken.isdisjoint(tensors):
        raise _malformed(f"'{min(taken & set(tensors))}' names two arrays")


def _check_shape(name: str, shape: Shape, dimensions: int | None = None) -> None:
    fits = len(shape) == dimensions if dimensions is not None else len(shape) <= MAX_DIMENSIONS
    if not fits or any(type(size) is not int or not 0 < size <= MAX_NUMBERS for size in shape):
        sizes = ", ".join(shown(size) for size in shape[: MAX_DIMENSIONS + 1])
        raise UpdateRefused(
            f"array '{name}' has shape [{clean(sizes)}]; expected "
            f"{dimensions or f'at most {MAX_DIMENSIONS}'} positive whole numbers",
            reason="wrong-shape",
        )


def _malformed(detail: str) -> UpdateRefused:
    return UpdateRefused(f"the payload's layout is malformed: {detail}", reason="wrong-layout")
