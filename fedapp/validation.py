"""What an update must satisfy before anyone computes with it; every refusal has a named reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from fedapp.adapter import Adapter
from fedapp.codec import Codec, Layout, Packed, decode
from fedapp.errors import MergeRefused, UpdateRefused
from fedapp.increments import add
from fedapp.subspaces import orthonormality_error

REASONS: dict[str, str] = {
    "empty": "the update has no payload, or its payload has no array",
    "bad-weight": "the update's weight (its number of examples) is not a positive finite number, "
    "or more than the training records that the site announced",
    "bad-metrics": "a reported metric or cost is not finite, out of range or oddly named",
    "wrong-round": "the update belongs to another round",
    "oversized": "the payload or its layout is larger than the limits allow",
    "wrong-layout": "names or scalings differ from the model's, or the layout is malformed",
    "wrong-rank": "a LoRA pair has another rank than the model's",
    "wrong-shape": "an array has another shape than the model's",
    "wrong-codec": "the number format is unknown, or not the one the run uses",
    "wrong-dtype": "the payload is not one flat array of bytes",
    "wrong-size": "the payload's length contradicts its layout",
    "wrong-digest": "the payload's bytes or layout are not those that were sent",
    "non-finite": "an array holds NaN or Inf",
    "not-orthonormal": "the rows of a basis are not orthonormal",
    "too-large": "an array holds a number of a magnitude that no training reaches",
}

LARGEST_WEIGHT = 1e15
"""Most training examples of one site: the sum over all sites stays finite."""
ORTHONORMAL = 1e-5
"""Largest entry of A A^T - I in a basis: fp32 of any size stays below 1e-6."""
LARGEST_NUMBER = 1e6
"""Largest magnitude in an update: factors and heads of a trained model stay below 100."""


def check_update(
    reply_packed: Packed | None,
    *,
    site: str,
    round: int,
    expected_layout: Mapping[str, Any] | Adapter,
    reply_round: int,
    weight: float,
    max_bytes: int,
    codec: Codec | None = None,
    records: int | None = None,
    base: Adapter | None = None,
    remedy: str = "training diverged, lower train.learning-rate",
) -> Adapter:
    """Return the decoded update, or refuse it.

    The cheap checks come first, and nothing is decoded before the layout equals the model's: an
    update cannot make the receiver allocate more than one model.

    Parameters
    ----------
    reply_packed : Packed or None
        What the site sent; None if its reply held no payload.
    site : str
    round : int
        The current round.
    expected_layout : Adapter or its ``layout()``
        The model of this round.
    reply_round : int
        Round the site says its update belongs to.
    weight : float
        Weight in the merge: number of training examples.
    max_bytes : int
        Largest payload accepted, in bytes.
    codec : {"fp32", "bf16", "int8"}, optional
        The number format the run uses; by default any known one.
    records : int, optional
        Training records that the site announced: the most that its weight can be.
    base : Adapter, optional
        What the site received, if it sent the increment on it.
    remedy : str
        What to do about a number that is not finite or too large.

    Raises
    ------
    UpdateRefused
        With one of `REASONS`, and a sentence that names the array, what was expected and what came.
    """

    def refuse(reason: str, message: str) -> NoReturn:
        raise UpdateRefused(message, reason=reason, site=site, round=round)

    if reply_packed is None or not (reply_packed.layout.pairs or reply_packed.layout.tensors):
        refuse("empty", "the update holds no array; expected a trained adapter")
    if not _is_number(weight) or not math.isfinite(weight) or not 0 < weight <= LARGEST_WEIGHT:
        refuse(
            "bad-weight",
            f"the update's weight must be positive and finite, at most {LARGEST_WEIGHT:g}, "
            f"got {weight!r:.40}",
        )
    if records is not None and weight > records:
        refuse(
            "bad-weight",
            f"the update's weight is at most the {records} training records that the site "
            f"announced, got {weight!r:.40}",
        )
    if reply_round != round:
        refuse("wrong-round", f"the update must be of round {round}, got {reply_round!r:.40}")
    layout = reply_packed.layout
    largest = max(reply_packed.nbytes, layout.nbytes)
    if largest > max_bytes:
        refuse("oversized", f"the update must have at most {max_bytes} bytes, got {largest}")
    if codec is not None and layout.codec != codec:
        refuse("wrong-codec", f"the update must be encoded as {codec}, got {layout.codec}")
    expected = expected_layout.layout() if isinstance(expected_layout, Adapter) else expected_layout
    difference = layout_difference(layout, expected)
    if difference is not None:
        refuse(*difference)
    try:
        adapter = decode(reply_packed.array, layout)
    except UpdateRefused as error:
        raise UpdateRefused(error.message, reason=error.reason, site=site, round=round) from None
    if base is not None:
        adapter = add(base, adapter)
    finding = first_non_finite(adapter)
    if finding is not None:
        refuse("non-finite", f"{finding}; {remedy}")
    finding = first_too_large(adapter)
    if finding is not None:
        refuse("too-large", f"{finding}; {remedy}")
    return adapter


def check_bases(
    reply_packed: Packed | None,
    *,
    site: str,
    round: int,
    expected_layout: Mapping[str, Any],
    reply_round: int,
    max_bytes: int,
) -> Adapter:
    """Return the decoded bases that a site proposes, or refuse them.

    Always in fp32, whatever the run's codec: rounded rows are not orthonormal.

    Parameters
    ----------
    reply_packed, site, round, reply_round, max_bytes
        As in `check_update`.
    expected_layout : mapping
        ``pairs`` empty; ``tensors``: shape (rows, features) by the name of a pair.

    Raises
    ------
    UpdateRefused
        With one of `REASONS`, and a sentence that names the layer, what was expected and what came.
    """
    if reply_packed is not None:
        for name, shape in reply_packed.layout.tensors.items():
            wanted = expected_layout["tensors"].get(name)
            if wanted is not None and len(shape) == 2 and shape[0] != wanted[0]:
                raise UpdateRefused(
                    f"the basis of layer '{name}' must have {wanted[0]} rows, got {shape[0]}; "
                    "lora.rank and dysco.rows must be equal at every site",
                    reason="wrong-rank",
                    site=site,
                    round=round,
                )
    bases = check_update(
        reply_packed,
        site=site,
        round=round,
        expected_layout=expected_layout,
        reply_round=reply_round,
        weight=1.0,
        max_bytes=max_bytes,
        codec="fp32",
        remedy="run the same fedapp version everywhere",
    )
    for name, rows_qn in bases.tensors.items():
        error = orthonormality_error(rows_qn)
        if not error <= ORTHONORMAL:
            raise UpdateRefused(
                f"the basis of layer '{name}' must have orthonormal rows to {ORTHONORMAL:g}, "
                f"got a deviation of {error:.3g}; run the same fedapp version everywhere",
                reason="not-orthonormal",
                site=site,
                round=round,
            )
    return bases


def check_merge(adapter: Adapter, round: int) -> None:
    """Refuse a merged model with a NaN or Inf, so that the previous one stays.

    Raises
    ------
    MergeRefused
        Naming the first such array.
    """
    finding = first_non_finite(adapter)
    if finding is not None:
        raise MergeRefused(f"after the merge {finding}; the previous model is kept", round=round)


def layout_difference(layout: Layout, expected: Mapping[str, Any]) -> tuple[str, str] | None:
    """Compare a received layout with ``Adapter.layout()`` of the model.

    Returns
    -------
    (str, str) or None
        Reason and sentence of the first difference.
    """
    for kind, received in (("pairs", layout.pairs), ("tensors", layout.tensors)):
        missing, extra = set(expected[kind]) - set(received), set(received) - set(expected[kind])
        if missing or extra:
            what = "is missing" if missing else "is not part of the model"
            return (
                "wrong-layout",
                f"{kind[:-1]} '{min(missing or extra)}' {what}; expected the model's "
                f"{len(expected[kind])} {kind}, got {len(received)}",
            )
    for name, (b_shape, a_shape, scaling) in layout.pairs.items():
        b_expected, a_expected, scaling_expected = expected["pairs"][name]
        if a_shape[0] != a_expected[0]:
            return (
                "wrong-rank",
                f"pair '{name}' must have rank {a_expected[0]}, got {a_shape[0]}; "
                "lora.rank must be equal at every site",
            )
        if scaling != scaling_expected:
            return (
                "wrong-layout",
                f"pair '{name}' must have scaling {scaling_expected}, got {scaling}; "
                "lora.alpha must be equal at every site",
            )
        for suffix, got, wanted in (("A", a_shape, a_expected), ("B", b_shape, b_expected)):
            if list(got) != list(wanted):
                return _wrong_shape(f"{name}.lora_{suffix}", wanted, got)
    for name, shape in layout.tensors.items():
        if list(shape) != list(expected["tensors"][name]):
            return _wrong_shape(name, expected["tensors"][name], shape)
    return None


def first_non_finite(adapter: Adapter) -> str | None:
    """Name the first array with a NaN or Inf and its first such place, or return None."""
    for name, array in adapter.arrays():
        finite = np.isfinite(array)
        if not finite.all():
            place = np.unravel_index(int(np.argmin(finite)), array.shape)
            where = f"[{', '.join(str(int(i)) for i in place)}]"
            return f"array '{name}' must be finite, got {array[place]} at {where}"
    return None


def first_too_large(adapter: Adapter) -> str | None:
    """Name the first finite array with a number beyond `LARGEST_NUMBER`, or return None."""
    for name, array in adapter.arrays():
        largest = max(float(array.max(initial=0)), -float(array.min(initial=0)))
        if largest > LARGEST_NUMBER:
            return (
                f"array '{name}' must hold magnitudes of at most {LARGEST_NUMBER:g}, "
                f"got {largest:.4g}"
            )
    return None


def _wrong_shape(name: str, wanted: Any, got: Any) -> tuple[str, str]:
    return "wrong-shape", f"array '{name}' must have shape {list(wanted)}, got {list(got)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
