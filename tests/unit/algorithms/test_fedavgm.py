"""FedAvgM against its recursion, in factors and in products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quadratic import heads, quadratic_config, regressions, snapshot

from fedapp.adapter import Adapter
from server_app.app import build_strategy

LOSSES = [(np.diag([1.0, 2.0]), np.array([1.0, -1.0])), (np.eye(2), np.array([-2.0, 4.0]))]


def product(adapter: Adapter) -> np.ndarray:
    pair = adapter.pairs["q"]
    return pair.scaling * pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64)


@pytest.mark.parametrize("dampening", [False, True])
def test_the_sequence_is_the_published_one(dampening: bool) -> None:
    eta, beta, rate, steps = 0.1, 0.8, 0.5, 3
    config = quadratic_config(
        federation__algorithm="fedavgm",
        fedavgm__momentum=beta,
        fedavgm__server_lr=rate,
        fedavgm__dampening=dampening,
    )
    federation = heads(config, LOSSES, [10, 30], [steps, steps])

    w, u = np.zeros(2), np.zeros(2)
    for number in range(1, 7):
        federation.round(number)
        mean = np.zeros(2)
        for share, (h, b) in zip((0.25, 0.75), LOSSES, strict=True):
            y = w.copy()
            for _ in range(steps):
                y = y - eta * h @ (y - b)
            mean += share * y
        u = beta * u + ((1 - beta) if dampening else 1.0) * (mean - w)
        w = w + rate * u
        np.testing.assert_allclose(federation.head, w, atol=2e-6)


def test_momentum_zero_is_fedavg() -> None:
    ends = []
    for more in ({}, {"federation__algorithm": "fedavgm", "fedavgm__momentum": 0.0}):
        federation = regressions(quadratic_config(**more))
        for number in (1, 2):
            federation.round(number)
        ends.append(federation.strategy.adapter)

    for (name, one), (_, other) in zip(ends[0].arrays(), ends[1].arrays(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, err_msg=name)


def truncated(dense: np.ndarray, rank: int) -> np.ndarray:
    u, s, vt = np.linalg.svd(dense)
    kept: np.ndarray = (u[:, :rank] * s[:rank]) @ vt[:rank]
    return kept


@pytest.mark.parametrize("method", ["svd", "subspace-reg", "fedsvd"])
def test_where_the_basis_moves_the_momentum_is_of_products(method: str) -> None:
    """Against the same recursion on dense matrices, with a rank cap that cuts nothing."""
    beta, rate, rank = 0.6, 0.7, 2
    config = quadratic_config(
        method=method,
        federation__algorithm="fedavgm",
        fedavgm__momentum=beta,
        fedavgm__server_lr=rate,
        subspace_reg__preserve_norm="none",
        train__learning_rate=0.02,
    )
    federation = regressions(config)
    strategy = federation.strategy

    u_mn, u_head = np.zeros((6, 5)), np.zeros(4)
    for number in range(1, 5):
        before, merge = strategy.adapter, build_strategy(config)
        merge.adapter = before
        updates = federation.round(number)
        merged = merge.merge(number, updates)

        u_mn = beta * u_mn + product(merged) - product(before)
        u_head = beta * u_head + merged.tensors["head.weight"] - before.tensors["head.weight"]
        dense = truncated(product(before) + rate * u_mn, rank)
        np.testing.assert_allclose(product(strategy.adapter), dense, atol=1e-5)
        head = before.tensors["head.weight"] + rate * u_head
        np.testing.assert_allclose(federation.head, head, atol=1e-5)
        assert federation.numbers["momentum_error"] < 1e-6
        b_mr, a_rn = strategy.adapter.pairs["q"].b_mr, strategy.adapter.pairs["q"].a_rn
        gram = a_rn @ a_rn.T if method == "fedsvd" else b_mr.T @ b_mr
        if method != "svd":
            np.testing.assert_allclose(gram, np.eye(rank), atol=1e-5)
        assert strategy.adapter.layout() == federation.initial.layout()


def test_what_the_rank_cap_takes_is_told() -> None:
    config = quadratic_config(
        method="svd", federation__algorithm="fedavgm", fedavgm__rank_cap=1, fedavgm__momentum=0.5
    )
    federation = regressions(config)
    change = None
    for number in (1, 2):
        before, merge = federation.strategy.adapter, build_strategy(config)
        merge.adapter = before
        last = snapshot(federation.strategy).get("algorithm.velocity")
        updates = federation.round(number)
        change = product(merge.merge(number, updates)) - product(before)
        if last is not None:
            change = change + 0.5 * product(last)

    velocity = snapshot(federation.strategy)["algorithm.velocity"]
    assert velocity.pairs["q"].rank == 1
    assert change is not None
    error = np.linalg.norm(change - product(velocity)) / np.linalg.norm(change)
    assert federation.numbers["momentum_error"] == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "svd"])
def test_a_restored_coordinator_goes_on_with_the_same_bits(method: str) -> None:
    config = quadratic_config(method=method, federation__algorithm="fedavgm")
    whole, parts = regressions(config), regressions(config)
    for number in (1, 2):
        whole.round(number)
        parts.round(number)
    saved: dict[str, Any] = snapshot(parts.strategy)
    parts.strategy = build_strategy(config)
    parts.strategy.load_state_dict(saved)

    whole.round(3)
    parts.round(3)

    assert whole.strategy.adapter.digest() == parts.strategy.adapter.digest()
