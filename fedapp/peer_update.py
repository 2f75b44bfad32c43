"""A model as peers exchange it: the numbers alone, since both sides know the layout.

What both must have alike is compared by one digest in the signed envelope (`terms_digest`), so that
no peer describes its own arrays to another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from fedapp.adapter import Adapter
from fedapp.codec import Codec, Layout, Packed, pack
from fedapp.errors import UpdateRefused
from fedapp.mailbox import Letter
from fedapp.validation import check_update


def terms_digest(initial: Adapter, base_digest: str, label_map: Sequence[str], codec: str) -> str:
    """SHA-256 of what peers must have alike: base model, seeded first adapter, labels, format."""
    terms = [base_digest, initial.layout_digest(), initial.digest(), list(label_map), codec]
    return hashlib.sha256(json.dumps(terms).encode()).hexdigest()


def write_letter(origin: str, model: Adapter, terms: str, codec: Codec) -> Letter:
    """Return a model ready to be published."""
    return Letter(origin, pack(model, codec).array.tobytes(), terms, codec)


def read_letter(
    letter: Letter, *, round: int, like: Adapter, terms: str, codec: Codec, max_bytes: int
) -> Adapter:
    """Return the model of a letter, or refuse it.

    Parameters
    ----------
    letter : Letter
        Verified as its origin's, and of this round.
    round : int
    like : Adapter
        The own model.
    terms, codec, max_bytes
        As at this site.

    Raises
    ------
    UpdateRefused
        With one of `fedapp.validation.REASONS`.
    """
    if letter.codec != codec:
        raise UpdateRefused(
            f"the model must be encoded as {codec}, got {letter.codec}; federation.codec must be "
            "equal at every site",
            reason="wrong-codec",
            site=letter.origin,
            round=round,
        )
    if letter.terms != terms:
        raise UpdateRefused(
            "the site has another base model, first adapter, layout or label map than this one; "
            "model, lora, data.labels and seed must be equal at every site",
            reason="wrong-layout",
            site=letter.origin,
            round=round,
        )
    described = like.layout()
    layout = Layout(
        codec,
        {
            name: (pair.b_mr.shape, pair.a_rn.shape, float(pair.scaling))
            for name, pair in like.pairs.items()
        },
        {name: tensor.shape for name, tensor in like.tensors.items()},
        hashlib.sha256(letter.payload).hexdigest(),  # the envelope's digest has vouched for it
    )
    return check_update(
        Packed(np.frombuffer(letter.payload, dtype=np.uint8), layout),
        site=letter.origin,
        round=round,
        expected_layout=described,
        reply_round=round,
        weight=1.0,
        max_bytes=max_bytes,
        codec=codec,
    )
