"""A model as peers exchange it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import Codec, pack
from fedapp.errors import UpdateRefused
from fedapp.mailbox import Letter
from fedapp.peer_update import read_letter, terms_digest, write_letter


def model(seed: int = 0, rank: int = 2) -> Adapter:
    rng = np.random.default_rng(seed)
    b_mr, a_rn = rng.standard_normal((6, rank)), rng.standard_normal((rank, 5))
    pair = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), 2.0)
    return Adapter({"q": pair}, {"head": rng.standard_normal((2, 6)).astype(np.float32)})


TERMS = terms_digest(model(), "b" * 64, ["no", "yes"], "fp32")


def read(letter: Letter, **changes: Any) -> Adapter:
    known: dict[str, Any] = {
        "round": 3, "like": model(1), "terms": TERMS, "codec": "fp32", "max_bytes": 10_000,
    }  # fmt: skip
    return read_letter(letter, **{**known, **changes})


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_numbers_alone_travel_and_come_back(codec: Codec) -> None:
    sent = model(4)
    letter = write_letter("Bern", sent, TERMS, codec)

    assert read(letter, codec=codec).digest() == pack(sent, codec).unpack().digest()
    if codec == "fp32":
        assert len(letter.payload) == 4 * sent.size


def test_the_terms_are_of_all_that_peers_must_have_alike() -> None:
    same = terms_digest(model(), "b" * 64, ["no", "yes"], "fp32")
    others = {
        terms_digest(model(9), "b" * 64, ["no", "yes"], "fp32"),
        terms_digest(model(), "c" * 64, ["no", "yes"], "fp32"),
        terms_digest(model(), "b" * 64, ["yes", "no"], "fp32"),
        terms_digest(model(), "b" * 64, ["no", "yes"], "int8"),
    }
    assert same == TERMS
    assert len(others - {TERMS}) == 4


def test_faults_have_reasons_and_name_site_and_round() -> None:
    good = write_letter("Bern", model(4), TERMS, "fp32")
    bad = model(4).map(lambda name, x: x * np.float32("inf"))
    huge = model(4).map(lambda name, x: x * np.float32(1e9))
    cases = {
        "wrong-codec": replace(good, codec="bf16"),
        "wrong-layout": replace(good, terms="0" * 64),
        "wrong-size": replace(good, payload=good.payload[:-1]),
        "non-finite": write_letter("Bern", bad, TERMS, "fp32"),
        "too-large": write_letter("Bern", huge, TERMS, "fp32"),
    }
    for reason, letter in cases.items():
        with pytest.raises(UpdateRefused, match=r"^site Bern, round 3: ") as caught:
            read(letter)
        assert caught.value.reason == reason
    with pytest.raises(UpdateRefused) as caught:
        read(good, max_bytes=10)
    assert caught.value.reason == "oversized"
