"""The adapter: one order, one layout digest, one content digest."""

import json

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair, layout_digest


def _pair(seed, m=5, n=7, r=2, scaling=2.0):
    rng = np.random.default_rng(seed)
    return LoraPair(
        b_mr=rng.normal(size=(m, r)).astype(np.float32),
        a_rn=rng.normal(size=(r, n)).astype(np.float32),
        scaling=scaling,
    )


def _adapter(**changes):
    pairs = {"layer.1.query": _pair(1), "layer.0.value": _pair(2)} | changes.get("pairs", {})
    tensors = {"classifier.weight": np.ones((3, 4), np.float32)} | changes.get("tensors", {})
    return Adapter(pairs, tensors)


def test_wire_order_is_sorted_and_a_comes_before_b():
    assert [name for name, _ in _adapter().arrays()] == [
        "layer.0.value.lora_A",
        "layer.0.value.lora_B",
        "layer.1.query.lora_A",
        "layer.1.query.lora_B",
        "classifier.weight",
    ]


def test_the_order_of_construction_does_not_matter():
    adapter = _adapter()

    turned = Adapter(dict(reversed(adapter.pairs.items())), dict(reversed(adapter.tensors.items())))

    assert turned.digest() == adapter.digest()
    assert turned.layout_digest() == adapter.layout_digest()


@pytest.mark.parametrize(
    "other",
    [
        _adapter(pairs={"layer.0.value": _pair(2, m=6)}),
        _adapter(pairs={"layer.0.value": _pair(2, n=6)}),
        _adapter(pairs={"layer.0.value": _pair(2, r=3)}),
        _adapter(pairs={"layer.0.value": _pair(2, scaling=1.0)}),
        _adapter(pairs={"layer.2.value": _pair(2)}),
        _adapter(tensors={"classifier.bias": np.zeros(3, np.float32)}),
        _adapter(tensors={"classifier.weight": np.ones((4, 3), np.float32)}),
        Adapter(_adapter().pairs),
    ],
)
def test_the_layout_digest_tells_names_shapes_and_scalings_apart(other):
    assert other.layout_digest() != _adapter().layout_digest()
    assert other.digest() != _adapter().digest()


def test_the_layout_digest_ignores_content():
    assert _adapter().map(lambda _, x: x * 2).layout_digest() == _adapter().layout_digest()


def test_the_layout_survives_json_with_its_digest():
    layout = _adapter().layout()

    assert layout_digest(json.loads(json.dumps(layout))) == _adapter().layout_digest()


@pytest.mark.parametrize("scaling", [2, np.float64(2.0), np.float32(2.0)])
def test_a_scaling_is_one_number_whatever_its_type(scaling):
    other = _adapter(pairs={"layer.0.value": _pair(2, scaling=scaling)})

    assert other.layout_digest() == _adapter().layout_digest()


def test_the_content_digest_sees_a_single_bit():
    def flip(name, array):
        changed = array.copy()
        if name == "classifier.weight":
            changed.view(np.uint32)[0, 0] ^= 1
        return changed

    assert _adapter().map(flip).digest() != _adapter().digest()
    assert _adapter().map(lambda _, x: x.copy()).digest() == _adapter().digest()


def test_the_content_digest_is_of_fp32_values_not_of_memory_layout():
    same = _adapter().map(lambda _, x: np.asfortranarray(x.astype(np.float64)))

    assert same.digest() == _adapter().digest()


def test_map_names_every_array_once_and_keeps_the_scaling():
    seen = []

    doubled = _adapter().map(lambda name, x: (seen.append(name), 2 * x)[1])

    assert seen
    assert sorted(seen) == sorted(name for name, _ in _adapter().arrays())
    for (_, was), (_, now) in zip(_adapter().arrays(), doubled.arrays(), strict=True):
        np.testing.assert_array_equal(now, 2 * was)
    assert [pair.scaling for pair in doubled.pairs.values()] == [2.0, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [name for name, _ in _adapter().arrays()])
def test_is_finite_looks_at_every_array(bad, where):
    def spoil(name, array):
        changed = array.copy()
        if name == where:
            changed.flat[-1] = bad
        return changed

    assert _adapter().is_finite()
    assert not _adapter().map(spoil).is_finite()


def test_size_and_rank_count_what_is_there():
    assert _adapter().size == 2 * (5 * 2 + 2 * 7) + 12
    assert _adapter().pairs["layer.0.value"].rank == 2
    assert Adapter({}).size == 0
