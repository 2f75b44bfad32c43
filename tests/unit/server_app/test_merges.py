"""The merge rules against dense numpy SVDs of the summed products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import MergeRefused
from server_app.merges import (
    average_b_then_svd,
    average_factors,
    orthonormal_basis,
    sum_products,
)

SCALING = 2.0
SHAPES = {"a.query": (12, 9), "b.value": (7, 16)}
RANK = 3


@dataclass
class Sent:
    """An update as a merge sees it."""

    adapter: Adapter
    weight: float
    site: str = "somewhere"


def adapter(rng: np.random.Generator, scale: float = 1.0, rank: int = RANK) -> Adapter:
    def draw(*shape: int) -> Any:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    return Adapter(
        {name: LoraPair(draw(m, rank), draw(rank, n), SCALING) for name, (m, n) in SHAPES.items()},
        {"head.weight": draw(2, 5), "head.bias": draw(2)},
    )


def updates(seed: int, count: int) -> list[Sent]:
    rng = np.random.default_rng(seed)
    return [Sent(adapter(rng), float(rng.integers(1, 200)), f"site-{k}") for k in range(count)]


def dense_sum(received: list[Sent], name: str) -> Any:
    total = sum(u.weight for u in received)
    return sum(
        u.weight
        / total
        * SCALING
        * u.adapter.pairs[name].b_mr.astype(np.float64)
        @ u.adapter.pairs[name].a_rn.astype(np.float64)
        for u in received
    )


def truncated(dense: Any, rank: int = RANK) -> Any:
    u, s, vt = np.linalg.svd(dense)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def product(merged: Adapter, name: str) -> Any:
    pair = merged.pairs[name]
    return pair.scaling * pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64)


def close(left: Any, right: Any, tolerance: float = 1e-5) -> bool:
    return bool(np.linalg.norm(left - right) <= tolerance * (1 + np.linalg.norm(right)))


def identity_error(q_mr: Any) -> float:
    return float(np.abs(q_mr.T @ q_mr - np.eye(q_mr.shape[1])).max())


PRODUCT_RULES = {
    "symmetric": lambda u: sum_products(u, "symmetric"),
    "orthonormal-a": lambda u: sum_products(u, "orthonormal-a"),
    "orthonormal-b": lambda u: sum_products(u, "orthonormal-b"),
    "subspace-reg": lambda u: orthonormal_basis(u, "none"),
}
ALL_RULES = {
    "fedavg": average_factors,
    "preserved": lambda u: sum_products(u, "symmetric", preserve_norm=True),
    "subspace-reg a": lambda u: orthonormal_basis(u, "a"),
    "subspace-reg split": lambda u: orthonormal_basis(u, "split"),
    **PRODUCT_RULES,
}


@pytest.mark.parametrize("rule", PRODUCT_RULES.values(), ids=PRODUCT_RULES.keys())
@given(seed=st.integers(0, 10**6), count=st.integers(1, 7))
@settings(max_examples=15, deadline=None)
def test_product_rules_equal_the_truncated_dense_svd(rule: Any, seed: int, count: int) -> None:
    received = updates(seed, count)

    merged = rule(received)

    for name in SHAPES:
        assert close(product(merged, name), truncated(dense_sum(received, name)))


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
@given(seed=st.integers(0, 10**6), count=st.integers(2, 6))
@settings(max_examples=10, deadline=None)
def test_order_and_scale_of_the_weights_do_not_matter(rule: Any, seed: int, count: int) -> None:
    received = updates(seed, count)
    merged = rule(received)

    reversed_order = rule(received[::-1])
    scaled = rule([Sent(u.adapter, 37.5 * u.weight) for u in received])

    for name in SHAPES:
        assert close(product(reversed_order, name), product(merged, name), 1e-4)
        assert close(product(scaled, name), product(merged, name), 1e-4)
    for name, tensor in merged.tensors.items():
        np.testing.assert_allclose(reversed_order.tensors[name], tensor, atol=1e-6)
        np.testing.assert_allclose(scaled.tensors[name], tensor, atol=1e-6)


def rotated(received: list[Sent], seed: int) -> list[Sent]:
    """Write every site's product in another basis: B -> B Q, A -> Q^-1 A."""
    rng = np.random.default_rng(seed)

    def turn(pair: LoraPair) -> LoraPair:
        gauge_rr = np.eye(RANK) + 0.3 * rng.standard_normal((RANK, RANK))
        return LoraPair(
            (pair.b_mr @ gauge_rr).astype(np.float32),
            np.linalg.solve(gauge_rr, pair.a_rn).astype(np.float32),
            pair.scaling,
        )

    return [
        Sent(Adapter({n: turn(p) for n, p in u.adapter.pairs.items()}, u.adapter.tensors), u.weight)
        for u in received
    ]


@pytest.mark.parametrize("rule", PRODUCT_RULES.values(), ids=PRODUCT_RULES.keys())
def test_product_rules_ignore_the_basis_a_site_writes_its_product_in(rule: Any) -> None:
    received = updates(3, 4)

    merged, turned = rule(received), rule(rotated(received, 5))

    for name in SHAPES:
        assert close(product(turned, name), product(merged, name), 1e-3)


def test_factor_averaging_depends_on_that_basis() -> None:
    received = updates(3, 4)

    merged, turned = average_factors(received), average_factors(rotated(received, 5))

    assert not close(product(turned, "a.query"), product(merged, "a.query"), 1e-2)


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
@pytest.mark.parametrize("count", [1, 5])
def test_identical_updates_merge_to_themselves(rule: Any, count: int) -> None:
    one = updates(11, 1)[0]

    merged = rule([Sent(one.adapter, float(k + 1)) for k in range(count)])

    for name in SHAPES:
        assert close(product(merged, name), product(one.adapter, name))
    for name, tensor in one.adapter.tensors.items():
        np.testing.assert_allclose(merged.tensors[name], tensor, rtol=1e-6)
    assert merged.layout() == one.adapter.layout()


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
def test_heads_are_weighted_means(rule: Any) -> None:
    received = updates(2, 3)
    weights = [u.weight for u in received]

    merged = rule(received)

    for name in merged.tensors:
        expected = np.average([u.adapter.tensors[name] for u in received], axis=0, weights=weights)
        np.testing.assert_allclose(merged.tensors[name], expected, atol=1e-6)


def test_where_the_singular_values_go() -> None:
    received = updates(4, 4)
    values_r = np.linalg.svd(dense_sum(received, "a.query"), compute_uv=False)[:RANK]

    symmetric = sum_products(received, "symmetric").pairs["a.query"]
    flex = sum_products(received, "orthonormal-a").pairs["a.query"]
    basis = sum_products(received, "orthonormal-b").pairs["a.query"]

    columns = np.linalg.norm(symmetric.b_mr, axis=0)
    np.testing.assert_allclose(columns**2, values_r / SCALING, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(symmetric.a_rn, axis=1), columns, rtol=1e-4)
    assert identity_error(flex.a_rn.T) < 1e-6
    np.testing.assert_allclose(np.linalg.norm(flex.b_mr, axis=0), values_r / SCALING, rtol=1e-4)
    assert identity_error(basis.b_mr) < 1e-6
    np.testing.assert_allclose(np.linalg.norm(basis.a_rn, axis=1), values_r / SCALING, rtol=1e-4)


@pytest.mark.parametrize("preserve", ["a", "split"])
def test_norm_preservation_restores_the_norm_of_the_whole_sum(preserve: Any) -> None:
    received = updates(8, 5)

    merged = orthonormal_basis(received, preserve)

    for name in SHAPES:
        dense = dense_sum(received, name)
        whole, kept = np.linalg.norm(dense), np.linalg.norm(truncated(dense))
        assert whole > 1.05 * kept  # the truncation must lose something for the test to mean it
        assert np.linalg.norm(product(merged, name)) == pytest.approx(whole, rel=1e-5)
        b_norm = np.linalg.norm(merged.pairs[name].b_mr, axis=0)
        expected = np.sqrt(whole / kept) if preserve == "split" else 1.0
        np.testing.assert_allclose(b_norm, expected, rtol=1e-5)


@pytest.mark.parametrize("factorisation", ["symmetric", "orthonormal-a", "orthonormal-b"])
def test_svd_preserves_the_norm_when_asked(factorisation: Any) -> None:
    received = updates(9, 5)

    merged = sum_products(received, factorisation, preserve_norm=True)

    for name in SHAPES:
        whole = np.linalg.norm(dense_sum(received, name))
        assert np.linalg.norm(product(merged, name)) == pytest.approx(whole, rel=1e-5)


def zero_products(count: int) -> list[Sent]:
    """What the sites hold before round 1: B = 0, a common A."""
    start = adapter(np.random.default_rng(0)).map(
        lambda name, array: np.zeros_like(array) if name.endswith("lora_B") else array
    )
    return [Sent(start, 10.0 + k) for k in range(count)]


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
@pytest.mark.parametrize("count", [1, 3, 8])
def test_zero_products_stay_zero_finite_and_trainable(rule: Any, count: int) -> None:
    merged = rule(zero_products(count))

    assert merged.is_finite()
    for name in SHAPES:
        pair = merged.pairs[name]
        assert np.abs(product(merged, name)).max() < 1e-6
        # A gradient reaches direction i only if column i of B or row i of A is not zero.
        alive_r = np.linalg.norm(pair.b_mr, axis=0) + np.linalg.norm(pair.a_rn, axis=1)
        assert alive_r.min() > 0.1


def test_b_is_orthonormal_even_for_zero_products() -> None:
    merged = orthonormal_basis(zero_products(3), "a")

    for pair in merged.pairs.values():
        assert identity_error(pair.b_mr) < 1e-6


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
def test_a_missing_direction_stays_trainable(rule: Any) -> None:
    received = updates(12, 2)
    for update in received:  # two products of rank 1 add up to rank 2 of 3
        for pair in update.adapter.pairs.values():
            pair.b_mr[:, 1:] = 0

    merged = rule(received)

    for name, pair in merged.pairs.items():
        alive_r = np.linalg.norm(pair.b_mr, axis=0) + np.linalg.norm(pair.a_rn, axis=1)
        assert alive_r.min() > 0.1
        if rule is not average_factors:
            assert close(product(merged, name), dense_sum(received, name))
    for pair in orthonormal_basis(received, "a").pairs.values():
        assert identity_error(pair.b_mr) < 1e-6


def test_rank_above_the_matrix_size_keeps_layout_and_product() -> None:
    rng = np.random.default_rng(1)
    wide = [Sent(adapter(rng, rank=8), 1.0 + k) for k in range(3)]  # 8 > 7 = min of b.value

    for rule in ALL_RULES.values():
        merged = rule(wide)
        assert merged.layout() == wide[0].adapter.layout()
        assert merged.is_finite()
    assert close(product(orthonormal_basis(wide, "a"), "b.value"), dense_sum(wide, "b.value"))


def shared_a_updates(seed: int, count: int) -> tuple[Adapter, list[Sent]]:
    sent = adapter(np.random.default_rng(seed))
    trained = [
        Sent(
            sent.map(lambda n, x, o=u.adapter: x if n.endswith("lora_A") else dict(o.arrays())[n]),
            u.weight,
            u.site,
        )
        for u in updates(seed + 1, count)
    ]
    return sent, trained


@given(seed=st.integers(0, 10**6), count=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_fedsvd_changes_the_basis_and_not_the_mean_product(seed: int, count: int) -> None:
    sent, received = shared_a_updates(seed, count)

    merged = average_b_then_svd(received, sent)

    for name, pair in merged.pairs.items():
        dense = dense_sum(received, name)
        values_r = np.linalg.svd(dense, compute_uv=False)[:RANK]
        assert close(product(merged, name), dense)  # rank r already: nothing is truncated
        assert identity_error(pair.a_rn.T) < 1e-6
        np.testing.assert_allclose(
            np.linalg.norm(pair.b_mr, axis=0), values_r / SCALING, rtol=1e-3, atol=1e-5
        )


def test_fedsvd_refuses_an_update_that_trained_a() -> None:
    sent, received = shared_a_updates(0, 3)

    received[1] = Sent(
        received[1].adapter.map(
            lambda n, x: np.nextafter(x, np.float32(9)) if n == "a.query.lora_A" else x
        ),
        received[1].weight,
        "lyon",
    )

    with pytest.raises(MergeRefused, match=r"lyon.*changed A of pair 'a\.query'.*fedsvd"):
        average_b_then_svd(received, sent)


def test_fedsvd_with_b_zero_gives_an_orthonormal_a() -> None:
    received = zero_products(3)

    merged = average_b_then_svd(received, received[0].adapter)

    for pair in merged.pairs.values():
        assert not pair.b_mr.any()
        assert identity_error(pair.a_rn.T) < 1e-6


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
def test_nothing_to_merge_is_refused(rule: Any) -> None:
    with pytest.raises(MergeRefused, match="nothing to merge"):
        rule([])


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())
def test_updates_are_not_changed(rule: Any) -> None:
    received = updates(6, 3)
    before = [u.adapter.digest() for u in received]

    rule(received)

    assert [u.adapter.digest() for u in received] == before
