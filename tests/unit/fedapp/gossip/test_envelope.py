"""An envelope has one form, and says nothing that is out of bounds."""

import dataclasses

import pytest

from fedapp.errors import EnvelopeRefused
from fedapp.gossip.envelope import MAX_ENVELOPE, Envelope, new_nonce
from fedapp.gossip.proto import gossip_pb2

ENVELOPE = Envelope(
    run="0" * 32,
    round=3,
    origin="Zürich",
    layout_digest="ab" * 32,
    payload_digest="cd" * 32,
    size=10**6,
    chunk=2**20,
    codec="int8",
    nonce="ef" * 16,
    created=1_700_000_000_000,
    expiry=1_700_086_400_000,
)


def test_an_envelope_survives_its_bytes():
    assert Envelope.from_bytes(ENVELOPE.to_bytes()) == ENVELOPE
    assert len(ENVELOPE.to_bytes()) < 250


def test_every_field_changes_the_identity():
    other = dict(
        run="1" * 32, round=4, origin="Bern", layout_digest="ac" * 32, payload_digest="ce" * 32,
        size=10**6 + 1, chunk=2**19, codec="fp32", nonce="ee" * 16, created=1_700_000_000_001,
        expiry=1_700_086_400_001,
    )  # fmt: skip
    assert other.keys() == {field.name for field in dataclasses.fields(Envelope)}
    changed = [dataclasses.replace(ENVELOPE, **{key: value}) for key, value in other.items()]

    assert len({envelope.id for envelope in [ENVELOPE, *changed]}) == len(other) + 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", ""), ("run", "G" * 32), ("run", "0" * 31), ("run", "0" * 32 + "\n"),
        ("round", 0), ("round", 2**31),
        ("origin", ""), ("origin", "a" * 101), ("origin", "a\u202eb"), ("origin", "e\u0301"),
        ("layout_digest", ""), ("payload_digest", "cd" * 31),
        ("size", 0), ("size", 2**63), ("chunk", 1), ("chunk", 2**22),
        ("codec", ""), ("codec", "FP32"), ("codec", "a" * 17), ("nonce", "ef" * 15),
        ("created", -1), ("expiry", 1_700_000_000_000), ("expiry", 2**62),
    ],
)  # fmt: skip
def test_a_field_out_of_bounds_is_named(field, value):
    with pytest.raises(EnvelopeRefused, match=f"field '{field}'") as caught:
        dataclasses.replace(ENVELOPE, **{field: value})

    assert caught.value.reason == "malformed"
    assert "\n" not in str(caught.value)


def _unknown_field(data):
    return data + b"\xf8\x07\x01"


def _twice(data):
    return data + gossip_pb2.Envelope(round=3).SerializeToString()


def _long_number(data):
    assert data[:2] == b"\x08\x01"
    return b"\x08\x81\x00" + data[2:]


def _other_order(data):
    return data[2:] + data[:2]


@pytest.mark.parametrize("change", [_unknown_field, _twice, _long_number, _other_order])
def test_the_same_content_written_otherwise_is_refused(change):
    with pytest.raises(EnvelopeRefused, match="in another way"):
        Envelope.from_bytes(change(ENVELOPE.to_bytes()))


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x12", b"\x00" * 10, b"\x08\x01"])
def test_what_is_no_envelope_is_refused(data):
    with pytest.raises(EnvelopeRefused):
        Envelope.from_bytes(data)


def test_a_giant_is_refused_unread():
    with pytest.raises(EnvelopeRefused, match="at most"):
        Envelope.from_bytes(b"\x00" * (MAX_ENVELOPE + 1))


def test_another_version_is_named():
    data = ENVELOPE.to_bytes()

    with pytest.raises(EnvelopeRefused, match="format 2, expected 1"):
        Envelope.from_bytes(b"\x08\x02" + data[2:])


def test_nonces_differ():
    assert len({new_nonce() for _ in range(100)}) == 100
