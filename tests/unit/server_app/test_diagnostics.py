"""Diagnostics against dense matrices and against the definitions by scipy's subspace angles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

from fedapp.adapter import Adapter, LoraPair
from server_app.diagnostics import MAX_SITES, round_diagnostics
from server_app.merges import average_factors, orthonormal_basis, sum_products

NAMES = ("query", "value")
RANK, SCALING = 3, 2.0


@dataclass
class Sent:
    """An update as the diagnostics see it."""

    adapter: Adapter
    weight: float


def adapter(seed: int, b_scale: float = 1.0, near: Adapter | None = None) -> Adapter:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    if near is not None:
        return near.map(lambda _, x: (x + 0.3 * draw(*x.shape)).astype(np.float32))
    pairs = {n: LoraPair(draw(20, RANK) * b_scale, draw(RANK, 15), SCALING) for n in NAMES}
    return Adapter(pairs, {"head": draw(4)})


def dense(of: Adapter, name: str) -> Any:
    pair = of.pairs[name]
    return pair.scaling * pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64)


def cosine(left: Any, right: Any) -> float:
    return float(np.vdot(left, right) / np.linalg.norm(left) / np.linalg.norm(right))


def by_hand(sent: Adapter, updates: list[Sent], merged: Adapter) -> dict[str, float]:
    total = sum(u.weight for u in updates)
    p = [u.weight / total for u in updates]
    rows: list[dict[str, float]] = []
    for name in NAMES:
        w = [dense(u.adapter, name) for u in updates]
        steps = [x - dense(sent, name) for x in w]
        mean = sum(pk * x for pk, x in zip(p, w, strict=True))

        def ratio(parts: list[Any]) -> float:
            whole = sum(pk * x for pk, x in zip(p, parts, strict=True))
            norms = [pk * np.linalg.norm(x) for pk, x in zip(p, parts, strict=True)]
            return float(np.linalg.norm(whole) / sum(norms))

        squares = [
            np.sum(np.cos(subspace_angles(sent.pairs[name].b_mr, u.adapter.pairs[name].b_mr)) ** 2)
            / RANK
            for u in updates
        ]
        pairwise = [cosine(w[i], w[j]) for i in range(len(w)) for j in range(i)]
        rows.append(
            {
                "overlap": float(np.mean(np.sqrt(squares))),
                "overlap_squared": float(np.mean(squares)),
                "cancellation": ratio(w),
                "cancellation_increment": ratio(steps),
                "client_global_cosine": float(np.mean([cosine(x, mean) for x in w])),
                "pairwise_cosine": float(np.mean(pairwise)),
                "merge_error": float(
                    np.linalg.norm(dense(merged, name) - mean) / np.linalg.norm(mean)
                ),
            }
        )
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


@given(seed=st.integers(0, 10**6), count=st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_equal_to_dense_matrices(seed: int, count: int) -> None:
    sent = adapter(seed)
    rng = np.random.default_rng(seed)
    updates = [
        Sent(adapter(seed + k + 1, near=sent), float(rng.integers(1, 99))) for k in range(count)
    ]
    merged = average_factors(updates)

    found = round_diagnostics(sent, updates, merged)

    expected = by_hand(sent, updates, merged)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


def test_first_round_leaves_the_overlap_out() -> None:
    sent = adapter(0, b_scale=0.0)
    updates = [Sent(adapter(k + 1), 1.0) for k in range(3)]

    found = round_diagnostics(sent, updates)

    assert "overlap" not in found
    assert "overlap_squared" not in found
    # Everything was learned in this round, so both ratios speak of the same matrices.
    assert found["cancellation_increment"] == pytest.approx(found["cancellation"], rel=1e-5)


def test_one_site_has_no_pairwise_cosine_and_cancels_nothing() -> None:
    sent = adapter(0)

    found = round_diagnostics(sent, [Sent(adapter(1, near=sent), 7.0)])

    assert "pairwise_cosine" not in found
    for key in ("cancellation", "cancellation_increment", "client_global_cosine"):
        assert found[key] == pytest.approx(1.0, abs=1e-6)


def test_sites_that_undo_each_other_cancel_in_the_increments_alone() -> None:
    sent = adapter(0)
    step = adapter(9)

    def moved(sign: float) -> Adapter:
        arrays = dict(step.arrays())
        return sent.map(
            lambda n, x: x if n.endswith("lora_A") else x + np.float32(0.01 * sign) * arrays[n]
        )

    found = round_diagnostics(sent, [Sent(moved(1.0), 1.0), Sent(moved(-1.0), 1.0)])

    assert found["cancellation"] > 0.999
    assert found["cancellation_increment"] < 1e-3


@pytest.mark.parametrize("zero_sent", [True, False])
def test_zero_products_give_finite_numbers(zero_sent: bool) -> None:
    zero = adapter(0, b_scale=0.0)
    sent = zero if zero_sent else adapter(1)

    found = round_diagnostics(sent, [Sent(zero, 1.0), Sent(zero, 2.0)], zero)

    assert all(np.isfinite(value) for value in found.values())
    assert "merge_error" not in found  # an error relative to nothing


def test_merge_error_is_zero_for_an_exact_merge_and_not_for_averaged_factors() -> None:
    sent = adapter(0)
    same_a = [
        Sent(sent.map(lambda n, x, k=k: x if n.endswith("lora_A") else x * (k + 1)), 1.0)
        for k in range(3)
    ]
    free = [Sent(adapter(k, near=sent), 1.0) for k in range(3)]

    assert round_diagnostics(sent, same_a, sum_products(same_a))["merge_error"] < 1e-6
    assert round_diagnostics(sent, free, average_factors(free))["merge_error"] > 0.01


def test_truncation_error_is_what_the_dense_svd_loses() -> None:
    sent = adapter(0)
    updates = [Sent(adapter(k, near=sent), 1.0) for k in range(3)]

    found = round_diagnostics(sent, updates, orthonormal_basis(updates, "none"))

    lost = []
    for name in NAMES:
        values = np.linalg.svd(
            np.mean([dense(u.adapter, name) for u in updates], axis=0), compute_uv=False
        )
        lost.append(np.linalg.norm(values[RANK:]) / np.linalg.norm(values))
    assert found["merge_error"] == pytest.approx(np.mean(lost), rel=1e-4)


def test_many_sites_are_represented_by_evenly_spaced_ones() -> None:
    sent = adapter(0)
    updates = [Sent(adapter(k + 1, near=sent), 1.0) for k in range(MAX_SITES + 9)]

    found = round_diagnostics(sent, updates, average_factors(updates))

    chosen = [updates[i] for i in np.linspace(0, len(updates) - 1, MAX_SITES).round().astype(int)]
    assert "merge_error" not in found
    assert found == round_diagnostics(sent, chosen)


@pytest.mark.parametrize(("steps", "rate"), [(4, 1e-4), (60, 2e-4)])
def test_a_high_overlap_needs_no_penalty(steps: int, rate: float) -> None:
    """docs/methods.md: t Adam steps of eta leave about (1 + (t eta)^2 m)^(-1/2) of the overlap."""
    rng = np.random.default_rng(0)
    m = 1024
    basis = np.linalg.qr(rng.standard_normal((m, 8)))[0].astype(np.float32)
    signs = np.sign(rng.standard_normal((m, 8))).astype(np.float32)
    a_rn = np.ones((8, 4), dtype=np.float32)
    sent = Adapter({"query": LoraPair(basis, a_rn, 1.0)})
    moved = Adapter({"query": LoraPair(basis + np.float32(steps * rate) * signs, a_rn, 1.0)})

    found = round_diagnostics(sent, [Sent(moved, 1.0)])

    assert found["overlap"] == pytest.approx((1 + (steps * rate) ** 2 * m) ** -0.5, abs=2e-3)
