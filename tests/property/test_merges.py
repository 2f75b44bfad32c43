"""Every merge rule on arbitrary federations, against the dense sum and its SVD in fp64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedapp.adapter import Adapter, LoraPair
from fedapp.registry import METHODS, load_half
from server_app.merges import (
    average_b_then_svd,
    average_factors,
    orthonormal_basis,
    sum_products,
)
from server_app.updates import Update

EPS = float(np.finfo(np.float32).eps)
KINDS = ("independent", "equal", "opposed", "rank-one", "zero-b", "one-zero", "tied", "near")
# The others give every site an A of the round's own: tests/unit/server_app/test_folding.py.
PEERS = {name for name, method in METHODS.items() if method.peer_rule}  # merge nothing here
ONE_MODEL = sorted(set(METHODS) - {"dysco", "random-boost"} - PEERS)
EXAMPLES = settings(deadline=None, max_examples=20)


@dataclass
class Sent:
    """An update as a merge sees it."""

    adapter: Adapter
    weight: float
    site: str


@dataclass
class Federation:
    """Updates of one layout, and the dense sum of their products."""

    updates: list[Sent]
    rank: int

    @property
    def shares(self) -> Any:
        weights = np.array([u.weight for u in self.updates])
        return weights / weights.sum()

    @property
    def total(self) -> Any:
        """``sum_k p_k s B_k A_k`` in fp64."""
        return sum(p * dense(u.adapter) for p, u in zip(self.shares, self.updates, strict=True))

    @property
    def scale(self) -> float:
        """What rounding is relative to: the terms of the sum, which may cancel."""
        sizes = [np.linalg.norm(dense(u.adapter)) for u in self.updates]
        return float(self.shares @ np.array(sizes))

    def best(self) -> tuple[Any, Any]:
        """The singular values of the sum, and the norm of what truncation to the rank leaves."""
        values = np.linalg.svd(self.total, compute_uv=False)
        return values, float(np.linalg.norm(values[self.rank :]))


def dense(adapter: Adapter) -> Any:
    """The product of the one pair, with its scaling, in fp64."""
    pair = adapter.pairs["q"]
    return pair.scaling * (pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64))


def build(b_mr: Any, a_rn: Any, scaling: float, head: Any) -> Adapter:
    """An adapter of one pair and one head in fp32."""
    pair = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), scaling)
    return Adapter({"q": pair}, {"head": head.astype(np.float32)})


@st.composite
def federations(draw: Any, shared_a: bool = False) -> Federation:
    """Any shapes, ranks, weights, scalings, magnitudes and degeneracies."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n, rank = draw(st.integers(1, 23)), draw(st.integers(1, 23)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(KINDS))
    count = draw(st.sampled_from([1, 2, 2, 3, 5, 9]))
    size_b, size_a = (10.0 ** draw(st.sampled_from([-20, -6, -2, 0, 0, 0, 3])) for _ in "ba")
    scaling = draw(st.sampled_from([0.125, 1.0, 2.0, 16.0, 2 / 3]))
    weights = 10.0 ** rng.uniform(0, draw(st.sampled_from([0, 2, 6])), count)
    b0, a0 = rng.normal(size=(m, rank)), rng.normal(size=(rank, n))
    if kind == "tied":  # orthonormal factors: all singular values are one
        b0 = np.linalg.qr(rng.normal(size=(m, max(m, rank))))[0][:, :rank]
        a0 = np.linalg.qr(rng.normal(size=(n, max(n, rank))))[0][:, :rank].T
        b0 = np.pad(b0, ((0, 0), (0, rank - b0.shape[1])))
        a0 = np.pad(a0, ((0, rank - a0.shape[0]), (0, 0)))
    updates = []
    for k in range(count):
        b, a = rng.normal(size=(m, rank)), rng.normal(size=(rank, n))
        if kind in ("equal", "tied", "opposed"):
            b, a = (-b0 if kind == "opposed" and k % 2 else b0), a0
        elif kind == "near":
            b, a = b0 + 1e-5 * b, a0 + 1e-5 * a
        elif kind == "rank-one":
            b[:, 1:] = 0
        elif kind == "zero-b" or (kind == "one-zero" and k == 0):
            b = np.zeros_like(b)
        if shared_a:
            a = a0
        head = rng.normal(size=(2, 3))
        updates.append(
            Sent(build(size_b * b, size_a * a, scaling, head), float(weights[k]), f"site-{k}")
        )
    if kind == "opposed":  # the sum vanishes
        updates = [Sent(u.adapter, 1.0, u.site) for u in updates]
    return Federation(updates, rank)


PRODUCT_RULES = {
    "symmetric": lambda u: sum_products(u, "symmetric"),
    "orthonormal-a": lambda u: sum_products(u, "orthonormal-a"),
    "orthonormal-b": lambda u: sum_products(u, "orthonormal-b"),
    "subspace-reg": lambda u: orthonormal_basis(u, "none"),
}
PRESERVING = {
    "symmetric": lambda u: sum_products(u, "symmetric", preserve_norm=True),
    "orthonormal-a": lambda u: sum_products(u, "orthonormal-a", preserve_norm=True),
    "subspace-reg a": lambda u: orthonormal_basis(u, "a"),
    "subspace-reg split": lambda u: orthonormal_basis(u, "split"),
}
ALL_RULES = {
    "fedavg": average_factors,
    **PRODUCT_RULES,
    **{f"{name}, norm": rule for name, rule in PRESERVING.items()},
}

products = pytest.mark.parametrize("rule", PRODUCT_RULES.values(), ids=PRODUCT_RULES.keys())
preserving = pytest.mark.parametrize("rule", PRESERVING.values(), ids=PRESERVING.keys())
every = pytest.mark.parametrize("rule", ALL_RULES.values(), ids=ALL_RULES.keys())


def tolerance(federation: Federation) -> float:
    """Rounding of the factors to fp32, of a product of that size."""
    smallest = 1e-37  # below which fp32 keeps fewer digits, and at last none
    return 20 * EPS * federation.scale + smallest


def orthonormal(q_mr: Any) -> bool:
    """Whether the columns that fit into the space are orthonormal and the others zero."""
    gram = q_mr.astype(np.float64).T @ q_mr.astype(np.float64)
    possible = min(q_mr.shape)
    expected = np.diag([1.0] * possible + [0.0] * (q_mr.shape[1] - possible))
    return bool(np.abs(gram - expected).max() < 1e-5)


@products
@EXAMPLES
@given(federation=federations())
def test_nothing_of_that_rank_is_nearer_to_the_dense_sum(rule: Any, federation: Federation) -> None:
    merged = rule(federation.updates)

    values, least = federation.best()
    bound = tolerance(federation)
    error = np.linalg.norm(dense(merged) - federation.total)
    assert least - bound <= error <= least + bound  # Eckart and Young; also when values tie
    kept = np.linalg.svd(dense(merged), compute_uv=False)
    np.testing.assert_allclose(kept[: federation.rank], values[: federation.rank], atol=bound)
    assert merged.is_finite()
    assert merged.layout() == federation.updates[0].adapter.layout()


@preserving
@EXAMPLES
@given(federation=federations())
def test_the_norm_of_the_dense_sum_is_kept_where_asked(rule: Any, federation: Federation) -> None:
    merged = rule(federation.updates)

    values, _ = federation.best()
    whole, kept = np.linalg.norm(values), np.linalg.norm(values[: federation.rank])
    if kept > 1e-3 * federation.scale > 1e-30:  # else the sum vanishes and the ratio is rounding's
        assert np.linalg.norm(dense(merged)) == pytest.approx(whole, rel=1e-4)
    assert merged.is_finite()


@EXAMPLES
@given(federation=federations(), preserve=st.sampled_from(["none", "a"]))
def test_the_basis_of_subspace_reg_is_orthonormal(federation: Federation, preserve: Any) -> None:
    pair = orthonormal_basis(federation.updates, preserve).pairs["q"]

    m, n = pair.b_mr.shape[0], pair.a_rn.shape[1]
    columns = min(federation.rank, m, n)
    assert orthonormal(pair.b_mr[:, :columns])
    assert not pair.b_mr[:, columns:].any()


@EXAMPLES
@given(federation=federations())
def test_the_other_factor_is_orthonormal_where_asked(federation: Federation) -> None:
    flex = sum_products(federation.updates, "orthonormal-a").pairs["q"]

    columns = min(federation.rank, flex.b_mr.shape[0], flex.a_rn.shape[1])
    assert orthonormal(flex.a_rn[:columns].T)


def gauged(federation: Federation, seed: int) -> list[Sent]:
    """The same products in another basis at every site: B G and G^-1 A, well conditioned."""
    rng = np.random.default_rng(seed)
    turned = []
    for update in federation.updates:
        pair, r = update.adapter.pairs["q"], federation.rank
        left, _ = np.linalg.qr(rng.normal(size=(r, r)))
        right, _ = np.linalg.qr(rng.normal(size=(r, r)))
        gauge_rr = (left * rng.uniform(0.5, 2.0, r)) @ right
        adapter = build(
            pair.b_mr.astype(np.float64) @ gauge_rr,
            np.linalg.solve(gauge_rr, pair.a_rn.astype(np.float64)),
            pair.scaling,
            update.adapter.tensors["head"],
        )
        turned.append(Sent(adapter, update.weight, update.site))
    return turned


def factor_rounding(federation: Federation) -> float:
    """How far rounding the factors to fp32 moves a product that is small for its factors."""
    pairs = [u.adapter.pairs["q"] for u in federation.updates]
    sizes = [p.scaling * np.linalg.norm(p.b_mr) * np.linalg.norm(p.a_rn) for p in pairs]
    return float(20 * EPS * (federation.shares @ np.array(sizes)) + 1e-37)


@products
@EXAMPLES
@given(federation=federations(), seed=st.integers(0, 999))
def test_the_basis_that_a_site_writes_its_product_in_does_not_matter(
    rule: Any, federation: Federation, seed: int
) -> None:
    turned = Federation(gauged(federation, seed), federation.rank)
    bound = factor_rounding(federation) + factor_rounding(turned)

    merged, other = rule(federation.updates), rule(turned.updates)

    _, least = federation.best()
    for adapter in (merged, other):  # where values tie the products may differ, not their distance
        error = np.linalg.norm(dense(adapter) - federation.total)
        assert abs(error - least) <= bound
    values = [np.linalg.svd(dense(adapter), compute_uv=False) for adapter in (merged, other)]
    np.testing.assert_allclose(values[0], values[1], atol=bound)
    full, _ = federation.best()
    r = federation.rank
    gap = full[r - 1] - full[r] if len(full) > r else full[-1]
    if len(full) <= r or gap > 0.1 * full[0] > 0:  # the best approximation is unique
        amplified = bound * (1 if len(full) <= r else 10 * full[0] / gap)
        assert np.linalg.norm(dense(merged) - dense(other)) <= 2 * amplified


@every
@EXAMPLES
@given(federation=federations(), data=st.data())
def test_the_order_of_arrival_matters_to_rounding_only(
    rule: Any, federation: Federation, data: Any
) -> None:
    shuffled = data.draw(st.permutations(federation.updates))

    merged, other = rule(federation.updates), rule(shuffled)

    values = [np.linalg.svd(dense(adapter), compute_uv=False) for adapter in (merged, other)]
    vanished = np.linalg.norm(federation.total) < 1e-3 * federation.scale
    if not vanished or rule in PRODUCT_RULES.values():  # a norm is not restored from rounding
        np.testing.assert_allclose(values[0], values[1], atol=tolerance(federation), rtol=1e-4)
    np.testing.assert_allclose(other.tensors["head"], merged.tensors["head"], atol=1e-5)


@pytest.mark.parametrize("method", ONE_MODEL)
@settings(deadline=None, max_examples=8)
@given(federation=federations(shared_a=True), data=st.data())
def test_the_order_of_arrival_does_not_change_a_bit_of_a_round(
    method: str, federation: Federation, data: Any
) -> None:
    """A strategy sorts by site before it sums."""
    from fedapp.codec import pack
    from fedapp.config import RunConfig

    assume("krum" not in method or len(federation.updates) >= 3)
    shuffled = data.draw(st.permutations(federation.updates))
    digests = []
    for updates in (federation.updates, shuffled):
        config = RunConfig.from_flat({"method": method, "fltrust.root": "site-0"})
        strategy = load_half(METHODS[method].server)(config)
        strategy.adapter = federation.updates[0].adapter
        received = [Update(u.site, u.weight, pack(u.adapter)) for u in updates]
        digests.append(strategy.aggregate(1, received).adapter.digest())

    assert digests[0] == digests[1]


@every
@EXAMPLES
@given(federation=federations(), factor=st.sampled_from([1e-6, 0.3, 37.5, 2.0**20]))
def test_the_unit_of_the_weights_does_not_matter(
    rule: Any, federation: Federation, factor: float
) -> None:
    scaled = [Sent(u.adapter, factor * u.weight, u.site) for u in federation.updates]

    merged, other = rule(federation.updates), rule(scaled)

    if np.linalg.norm(federation.total) > 1e-3 * federation.scale:
        values = [np.linalg.svd(dense(adapter), compute_uv=False) for adapter in (merged, other)]
        np.testing.assert_allclose(values[0], values[1], atol=tolerance(federation), rtol=1e-4)
    np.testing.assert_allclose(other.tensors["head"], merged.tensors["head"], atol=1e-5)


@products
@EXAMPLES
@given(federation=federations(), power=st.integers(-8, 8))
def test_products_times_c_merge_to_c_times_the_product(
    rule: Any, federation: Federation, power: int
) -> None:
    """Powers of two, which no factor is rounded for."""
    factor = 2.0**power

    def times(update: Sent) -> Sent:
        pair = update.adapter.pairs["q"]
        adapter = build(factor * pair.b_mr, pair.a_rn, pair.scaling, update.adapter.tensors["head"])
        return Sent(adapter, update.weight, update.site)

    merged, scaled = rule(federation.updates), rule([times(u) for u in federation.updates])

    values = [np.linalg.svd(dense(adapter), compute_uv=False) for adapter in (merged, scaled)]
    bound = max(1.0, factor) * tolerance(federation)
    np.testing.assert_allclose(values[1], factor * values[0], atol=bound)


@products
@EXAMPLES
@given(federation=federations())
def test_a_scaling_is_part_of_the_product(rule: Any, federation: Federation) -> None:
    """Twice alpha / r with half of B is the same product, and is written with the new scaling."""

    def rewritten(update: Sent) -> Sent:
        pair = update.adapter.pairs["q"]
        head = update.adapter.tensors["head"]
        return Sent(build(pair.b_mr / 2, pair.a_rn, 2 * pair.scaling, head), update.weight, "")

    merged, other = rule(federation.updates), rule([rewritten(u) for u in federation.updates])

    assert other.pairs["q"].scaling == 2 * merged.pairs["q"].scaling
    values = [np.linalg.svd(dense(adapter), compute_uv=False) for adapter in (merged, other)]
    np.testing.assert_allclose(values[1], values[0], atol=tolerance(federation))


@every
@EXAMPLES
@given(federation=federations(), count=st.sampled_from([1, 2]))
def test_one_update_or_two_equal_ones_merge_to_themselves(
    rule: Any, federation: Federation, count: int
) -> None:
    one = federation.updates[0]
    alone = Federation([one] * count, federation.rank)

    merged = rule(alone.updates)

    assert np.linalg.norm(dense(merged) - dense(one.adapter)) <= factor_rounding(alone)
    np.testing.assert_allclose(merged.tensors["head"], one.adapter.tensors["head"], rtol=1e-6)


@EXAMPLES
@given(federation=federations(shared_a=True))
def test_fedsvd_loses_nothing_of_the_dense_mean(federation: Federation) -> None:
    merged = average_b_then_svd(federation.updates, federation.updates[0].adapter)

    error = np.linalg.norm(dense(merged) - federation.total)
    assert error <= factor_rounding(federation)
    pair = merged.pairs["q"]
    rows = min(federation.rank, pair.b_mr.shape[0], pair.a_rn.shape[1])
    assert orthonormal(pair.a_rn[:rows].T)
    np.testing.assert_allclose(
        merged.tensors["head"],
        sum(
            p * u.adapter.tensors["head"]
            for p, u in zip(federation.shares, federation.updates, strict=True)
        ),
        atol=1e-5,
    )


@EXAMPLES
@given(federation=federations())
def test_fedavg_is_the_mean_of_each_factor(federation: Federation) -> None:
    merged = average_factors(federation.updates)

    for name, array in merged.arrays():
        arrays = [dict(u.adapter.arrays())[name].astype(np.float64) for u in federation.updates]
        expected = np.average(arrays, axis=0, weights=federation.shares)
        atol = 10 * EPS * np.average(np.abs(arrays), axis=0, weights=federation.shares).max()
        np.testing.assert_allclose(array, expected, atol=atol + 1e-44)
