"""Every refusal reason is produced by a real malformed payload, in one clear sentence."""

import json

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import Layout, Packed, encode, pack
from fedapp.errors import MergeRefused, UpdateRefused
from fedapp.validation import REASONS, check_merge, check_update


def _adapter(rank=2, m=4, n=6, scaling=2.0, name="layer.0.query", labels=3, fill=None):
    rng = np.random.default_rng(0)

    def make(*shape):
        array = rng.normal(size=shape).astype(np.float32)
        if fill is not None:
            array.flat[-1] = fill
        return array

    return Adapter(
        {name: LoraPair(make(m, rank), make(rank, n), scaling)},
        {"classifier.weight": make(labels, m)},
    )


MODEL = _adapter()


def _check(packed, **changes):
    arguments = {
        "site": "basel",
        "round": 5,
        "expected_layout": MODEL,
        "reply_round": 5,
        "weight": 100,
        "max_bytes": 10_000,
    } | changes
    return check_update(packed, **arguments)


def _spoil(name, value, codec="fp32"):
    def change(array_name, array):
        if array_name == name:
            array = array.copy()
            array[1, 1] = value
        return array

    return pack(MODEL.map(change), codec)


def _extra_head():
    return pack(Adapter(MODEL.pairs, {**MODEL.tensors, "classifier.bias": np.ones(3, "f4")}))


def _damaged():
    array, layout = encode(MODEL)
    array = array.copy()
    array[17] ^= 1
    return Packed(array, layout)


PACKED = pack(MODEL)
REFUSED = {
    # name: (payload, other arguments, reason, what the sentence must say)
    "no payload": (None, {}, "empty", ["holds no array"]),
    "payload without arrays": (pack(Adapter({})), {}, "empty", ["holds no array"]),
    "weight 0": (PACKED, {"weight": 0}, "bad-weight", ["positive and finite", "got 0"]),
    "weight absurd": (PACKED, {"weight": 1e300}, "bad-weight", ["at most 1e+15, got 1e+300"]),
    "weight negative": (PACKED, {"weight": -3.0}, "bad-weight", ["got -3.0"]),
    "weight nan": (PACKED, {"weight": np.nan}, "bad-weight", ["got nan"]),
    "weight inf": (PACKED, {"weight": np.inf}, "bad-weight", ["got inf"]),
    "weight above the records": (
        PACKED,
        {"weight": 101, "records": 100},
        "bad-weight",
        ["at most the 100 training records that the site announced, got 101"],
    ),
    "weight without records": (PACKED, {"records": 0}, "bad-weight", ["at most the 0 training"]),
    "large in B": (
        _spoil("layer.0.query.lora_B", 1.1e6),
        {},
        "too-large",
        ["'layer.0.query.lora_B' must hold magnitudes of at most 1e+06, got 1.1e+06"],
    ),
    "large and negative": (_spoil("classifier.weight", -3e38), {}, "too-large", ["got 3e+38"]),
    "large as bf16": (_spoil("classifier.weight", 2e6, "bf16"), {}, "too-large", ["classifier"]),
    "large as int8": (_spoil("classifier.weight", 2e6, "int8"), {}, "too-large", ["classifier"]),
    "weight text": (PACKED, {"weight": "100"}, "bad-weight", ["got '100'"]),
    "weight true": (PACKED, {"weight": True}, "bad-weight", ["got True"]),
    "last round": (PACKED, {"reply_round": 4}, "wrong-round", ["must be of round 5, got 4"]),
    "next round": (PACKED, {"reply_round": 6}, "wrong-round", ["must be of round 5, got 6"]),
    "too many bytes": (PACKED, {"max_bytes": 100}, "oversized", ["at most 100 bytes, got 128"]),
    "missing pair": (
        pack(Adapter({}, MODEL.tensors)),
        {},
        "wrong-layout",
        ["pair 'layer.0.query' is missing", "1 pairs, got 0"],
    ),
    "other pair": (
        pack(_adapter(name="layer.9.query")),
        {},
        "wrong-layout",
        ["pair 'layer.0.query' is missing"],
    ),
    "extra head": (
        _extra_head(),
        {},
        "wrong-layout",
        ["tensor 'classifier.bias' is not part of the model"],
    ),
    "missing head": (
        pack(Adapter(MODEL.pairs)),
        {},
        "wrong-layout",
        ["tensor 'classifier.weight' is missing"],
    ),
    "other alpha": (
        pack(_adapter(scaling=4.0)),
        {},
        "wrong-layout",
        ["'layer.0.query' must have scaling 2.0, got 4.0"],
    ),
    "other rank": (pack(_adapter(rank=3)), {}, "wrong-rank", ["must have rank 2, got 3"]),
    "other width": (
        pack(_adapter(n=7)),
        {},
        "wrong-shape",
        ["'layer.0.query.lora_A' must have shape [2, 6], got [2, 7]"],
    ),
    "other height": (
        pack(_adapter(m=5)),
        {},
        "wrong-shape",
        ["'layer.0.query.lora_B' must have shape [4, 2], got [5, 2]"],
    ),
    "other label count": (
        pack(_adapter(labels=2)),
        {},
        "wrong-shape",
        ["'classifier.weight' must have shape [3, 4], got [2, 4]"],
    ),
    "other codec": (
        pack(MODEL, "int8"),
        {"codec": "fp32"},
        "wrong-codec",
        ["must be encoded as fp32, got int8"],
    ),
    "floats instead of bytes": (
        Packed(PACKED.array.view(np.float32), PACKED.layout),
        {},
        "wrong-dtype",
        ["one flat uint8 array, got 1-d float32"],
    ),
    "truncated": (
        Packed(PACKED.array[:-4], PACKED.layout),
        {},
        "wrong-size",
        ["must have 128 bytes, got 124"],
    ),
    "damaged": (_damaged(), {}, "wrong-digest", ["SHA-256 must be"]),
    "nan in A": (
        _spoil("layer.0.query.lora_A", np.nan),
        {},
        "non-finite",
        ["'layer.0.query.lora_A' must be finite, got nan at [1, 1]"],
    ),
    "inf in B": (
        _spoil("layer.0.query.lora_B", np.inf),
        {},
        "non-finite",
        ["'layer.0.query.lora_B' must be finite, got inf at [1, 1]"],
    ),
    "-inf in the head": (
        _spoil("classifier.weight", -np.inf),
        {},
        "non-finite",
        ["'classifier.weight' must be finite, got -inf at [1, 1]"],
    ),
    "nan as bf16": (_spoil("classifier.weight", np.nan, "bf16"), {}, "non-finite", ["got nan"]),
    "nan as int8": (_spoil("classifier.weight", np.nan, "int8"), {}, "non-finite", ["got nan"]),
    "inf as int8": (_spoil("classifier.weight", np.inf, "int8"), {}, "non-finite", ["classifier"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_malformed_update_is_refused_with_reason_site_and_round(what):
    packed, changes, reason, texts = REFUSED[what]

    with pytest.raises(UpdateRefused) as caught:
        _check(packed, **changes)

    error = caught.value
    assert error.reason == reason
    assert (error.site, error.round) == ("basel", 5)
    assert str(error).startswith("site basel, round 5: ")
    for text in texts:
        assert text in str(error)
    assert "\n" not in str(error)
    assert error.__cause__ is None


def test_every_reason_is_explained_and_produced():
    elsewhere = {"bad-metrics", "not-orthonormal"}  # test_reported.py, test_basis_phase.py
    assert {reason for _, _, reason, _ in REFUSED.values()} | elsewhere == set(REASONS)
    assert all(REASONS.values())


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_a_good_update_passes_with_its_content(codec):
    packed = pack(MODEL, codec)

    adapter = _check(packed, codec=codec)

    assert adapter.digest() == packed.unpack().digest()
    assert adapter.layout() == MODEL.layout()


@pytest.mark.parametrize("weight", [1, 1e-9, np.float64(3), 10**12])
def test_any_positive_finite_weight_passes(weight):
    assert _check(PACKED, weight=weight).size == MODEL.size


def test_the_expected_layout_may_come_from_json():
    expected = json.loads(json.dumps(MODEL.layout()))

    assert _check(PACKED, expected_layout=expected).digest() == MODEL.digest()
    with pytest.raises(UpdateRefused, match="must have rank 2, got 3"):
        _check(pack(_adapter(rank=3)), expected_layout=expected)


def test_an_update_of_exactly_the_limit_passes():
    assert _check(PACKED, max_bytes=PACKED.nbytes).size == MODEL.size


def test_a_small_payload_cannot_claim_a_large_layout():
    layout = PACKED.layout
    claimed = Layout("fp32", layout.pairs, {"classifier.weight": (2**30, 4)}, layout.digest)

    with pytest.raises(UpdateRefused) as caught:
        _check(Packed(PACKED.array, claimed))
    assert caught.value.reason == "oversized"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_merge_with_a_non_finite_number_is_refused(bad):
    def spoil(name, array):
        array = array.copy()
        if name != "layer.0.query.lora_A":
            array[0, 1] = bad
        return array

    with pytest.raises(MergeRefused) as caught:
        check_merge(MODEL.map(spoil), 7)

    assert str(caught.value).startswith("round 7: after the merge array 'layer.0.query.lora_B'")
    assert "[0, 1]" in str(caught.value)
    assert caught.value.round == 7


def test_a_finite_merge_passes():
    check_merge(MODEL, 1)


def test_the_bounds_of_weight_and_magnitude_are_allowed():
    packed = _spoil("layer.0.query.lora_B", -1e6)

    assert _check(packed, weight=100, records=100).digest() == packed.unpack().digest()
