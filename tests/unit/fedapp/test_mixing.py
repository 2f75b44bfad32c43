"""Mixing by hand-computed examples and against dense products."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import MergeRefused
from fedapp.mixing import combine, mix, mixing_weights, step_size


def head(*numbers):
    return Adapter({}, {"head.bias": np.array(numbers, np.float32)})


def lora(seed, m=6, n=5, rank=2, scaling=2.0, a=None):
    rng = np.random.default_rng(seed)
    b_mr = rng.standard_normal((m, rank)).astype(np.float32)
    a_rn = rng.standard_normal((rank, n)).astype(np.float32) if a is None else a
    return Adapter({"q": LoraPair(b_mr, a_rn, scaling)}, {"head.bias": b_mr[:2, 0].copy()})


def product(adapter, name="q"):
    pair = adapter.pairs[name]
    return pair.scaling * pair.b_mr.astype(float) @ pair.a_rn.astype(float)


# ---- steps and weights ------------------------------------------------------------------------


def test_the_step_shrinks_to_its_floor():
    assert [step_size(t, 0.5, 0.2) for t in range(4)] == [1, 0.5, 0.25, 0.2]
    assert step_size(12, 0.95, 0) == pytest.approx(0.5404, abs=1e-4)
    assert step_size(1000, 1, 0) == 1
    for bad in [(-1, 0.5, 0), (0, 0, 0), (0, 1.1, 0), (0, 0.5, 2)]:
        with pytest.raises(ValueError, match="expected round >= 0"):
            step_size(*bad)


def test_weights_with_and_without_oneself_in_the_mean():
    assert mixing_weights(3, 1, include_self=True) == (0.25, 0.25)
    assert mixing_weights(2, 1, include_self=False) == (0, 0.5)
    assert mixing_weights(2, 0.5, include_self=False) == (0.5, 0.25)
    assert mixing_weights(1, 0.5, include_self=True) == (0.75, 0.25)
    assert mixing_weights(0, 1, include_self=False) == (1, 0)


# ---- hand-computed ----------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["products", "factors"])
@pytest.mark.parametrize(
    ("step", "include_self", "expected"),
    [
        (1.0, False, [5, 3]),  # the mean of the peers
        (1.0, True, [4, 4]),  # the mean of all three
        (0.5, False, [3.5, 4.5]),  # 2 + (5 - 2) / 2, 6 + (3 - 6) / 2
        (0.5, True, [3, 5]),
        (0.0, True, [2, 6]),
    ],
)
def test_tensors_move_towards_the_mean(on, step, include_self, expected):
    own, peers = head(2, 6), [head(4, 4), head(6, 2)]

    mixed, error = mix(own, peers, step, include_self=include_self, on=on)

    np.testing.assert_allclose(mixed.tensors["head.bias"], expected, rtol=1e-6)
    assert mixed.tensors["head.bias"].dtype == np.float32
    assert error == 0


def test_products_by_hand():
    # W_i = 2 * 1 * [1 0] in the first row; peer: 2 * 3 * [1 0]. Same direction, so rank 1 stays.
    b, a = np.array([[1], [0]], np.float32), np.array([[1, 0]], np.float32)
    own = Adapter({"q": LoraPair(b, a, 2.0)})
    peer = Adapter({"q": LoraPair(3 * b, a, 2.0)})

    mixed, error = mix(own, [peer], 0.5, include_self=False)

    np.testing.assert_allclose(product(mixed), [[4, 0], [0, 0]], atol=1e-6)
    assert mixed.pairs["q"].scaling == 2.0
    assert error < 1e-6


def test_factors_by_hand_are_not_products():
    b, a = np.array([[1], [0]], np.float32), np.array([[1, 0]], np.float32)
    own = Adapter({"q": LoraPair(b, a, 1.0)})
    peer = Adapter({"q": LoraPair(-b, -a, 1.0)})  # the same model

    on_factors, _ = mix(own, [peer], 1.0, include_self=True, on="factors")
    on_products, _ = mix(own, [peer], 1.0, include_self=True, on="products")

    np.testing.assert_allclose(product(on_factors), 0, atol=1e-7)
    np.testing.assert_allclose(product(on_products), product(own), atol=1e-6)


@pytest.mark.parametrize("on", ["products", "factors"])
def test_without_peers_the_own_model_stays_to_the_bit(on):
    own = lora(0)

    assert mix(own, [], 1.0, include_self=False, on=on) == (own, 0.0)
    assert mix(own, [lora(1)], 0.0, include_self=False, on=on)[0] is own


# ---- against dense ----------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(0.01, 1), st.booleans())
def test_products_are_the_best_of_their_rank(seed, count, step, include_self):
    own, peers = lora(seed), [lora((seed, k)) for k in range(count)]
    mean = np.mean([product(p) for p in ([own] if include_self else []) + peers], axis=0)
    target = product(own) + step * (mean - product(own))
    u, s, vt = np.linalg.svd(target)

    mixed, error = mix(own, peers, step, include_self=include_self)

    assert mixed.layout() == own.layout()
    scale = np.linalg.norm(s)
    np.testing.assert_allclose(product(mixed), (u[:, :2] * s[:2]) @ vt[:2], atol=1e-4 * scale)
    assert error == pytest.approx(np.linalg.norm(s[2:]) / scale, abs=1e-5)


def test_peers_that_share_a_lose_nothing():
    a = lora(0).pairs["q"].a_rn
    own, peers = lora(0, a=a), [lora(1, a=a), lora(2, a=a)]

    mixed, error = mix(own, peers, 0.8, include_self=True)

    expected = product(own) + 0.8 * (np.mean([product(p) for p in [own, *peers]], 0) - product(own))
    np.testing.assert_allclose(product(mixed), expected, atol=1e-5)
    assert error < 1e-6


def test_the_result_has_the_rank_even_of_smaller_matrices_and_zero_products():
    own, peer = lora(0, m=2, rank=3), lora(1, m=2, rank=3)
    mixed, error = mix(own, [peer], 1.0, include_self=True)
    np.testing.assert_allclose(product(mixed), (product(own) + product(peer)) / 2, atol=1e-5)
    assert mixed.layout() == own.layout()
    assert error < 1e-6

    fresh = [
        Adapter({"q": LoraPair(np.zeros((6, 2), np.float32), lora(k).pairs["q"].a_rn, 2.0)})
        for k in range(2)
    ]
    mixed, error = mix(fresh[0], fresh[1:], 1.0, include_self=True)
    assert error == 0
    np.testing.assert_array_equal(mixed.pairs["q"].b_mr, 0)
    rows = mixed.pairs["q"].a_rn
    np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-6)  # can still be trained


def test_a_combination_may_have_any_weights():
    start, trained = lora(0), lora(1)

    total, _ = combine([(2.0, start), (-1.0, trained)])

    u, s, vt = np.linalg.svd(2 * product(start) - product(trained))
    np.testing.assert_allclose(product(total), (u[:, :2] * s[:2]) @ vt[:2], atol=1e-5)
    np.testing.assert_allclose(
        total.tensors["head.bias"],
        2 * start.tensors["head.bias"] - trained.tensors["head.bias"],
        rtol=1e-5,
    )


# ---- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["products", "factors"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_mixed(on, value):
    broken = lora(1).map(lambda name, array: array if "head" in name else array * value)

    with pytest.raises(MergeRefused, match="model 2 holds NaN or Inf"):
        mix(lora(0), [lora(2), broken], 1.0, include_self=True, on=on)


@pytest.mark.parametrize("on", ["products", "factors"])
def test_an_overflow_is_refused(on):
    with pytest.raises(MergeRefused, match="would be non-finite"):
        combine([(1.0, head(3e38)), (1.0, head(3e38))], on)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="term 1 has another layout"):
        mix(lora(0), [lora(1, rank=3)], 1.0, include_self=True)
    with pytest.raises(ValueError, match="step must be"):
        mix(lora(0), [lora(1)], 1.5, include_self=True)
    with pytest.raises(ValueError, match="products or factors"):
        combine([(1.0, lora(0))], "weights")
