"""Ditto: the shared model is FedAvg's, and a site's own follows its published steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quadratic import QuadraticFederation, heads, quadratic_config, regressions

from fedapp.state import join_state

LOSSES = [
    (np.diag([2.0, 0.5, 1.0]), np.array([1.0, -2.0, 3.0])),
    (np.diag([1.0, 3.0, 0.3]), np.array([-1.0, 2.0, 0.5])),
]
ETA = 0.1


def own(federation: QuadraticFederation, number: int) -> np.ndarray:
    kept = federation.sites[number].kept[-1]
    array: np.ndarray = join_state(*kept)["own"].tensors["head.weight"]
    return array.astype(np.float64)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_both_sequences_are_the_published_ones(weight: float) -> None:
    """With a site that misses a round, and goes on with its own model where it left it."""
    config = quadratic_config(method="ditto", ditto__lambda=weight)
    federation = heads(config, LOSSES, [10, 30], [4, 6])

    w, v = np.zeros(3), [np.zeros(3), np.zeros(3)]
    for number, sampled in enumerate([(0, 1), (1,), (0, 1), (0,), (0, 1)], start=1):
        federation.round(number, [f"site-{k}" for k in sampled])
        ends = {}
        for k in sampled:
            (h, b), steps = LOSSES[k], (4, 6)[k]
            ends[k] = w.copy()
            for _ in range(steps):
                ends[k] = ends[k] - ETA * h @ (ends[k] - b)
                v[k] = v[k] - ETA * (h @ (v[k] - b) + weight * (v[k] - w))
        total = sum((10, 30)[k] for k in sampled)
        w = sum((10, 30)[k] / total * end for k, end in ends.items())
        np.testing.assert_allclose(federation.head, w, atol=1e-5)
        for k in sampled:
            np.testing.assert_allclose(own(federation, k), v[k], atol=1e-5)


def test_after_long_training_it_is_the_minimiser_of_its_problem() -> None:
    weight = 0.7
    federation = heads(
        quadratic_config(method="ditto", ditto__lambda=weight), LOSSES, [10, 10], [400, 400]
    )
    federation.round(1)
    shared = federation.head
    federation.round(2)

    for k, (h, b) in enumerate(LOSSES):
        expected = np.linalg.solve(h + weight * np.eye(3), h @ b + weight * shared)
        np.testing.assert_allclose(own(federation, k), expected, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedprox", "fednova", "fedsam"])
def test_what_is_shared_is_as_without_it_to_the_bit(algorithm: str) -> None:
    ends, numbers = [], []
    for method in ("fedavg", "ditto"):
        config: Any = quadratic_config(method=method, federation__algorithm=algorithm)
        federation = regressions(config)
        for number in (1, 2):
            updates = federation.round(number)
        assert all("own" not in update.payloads for update in updates)
        ends.append(federation.strategy.adapter.digest())
        numbers.append([update.numbers for update in updates])

    assert ends[0] == ends[1]
    for plain, with_own in zip(*numbers, strict=True):
        seconds = {"training_seconds"}
        assert {k: v for k, v in plain.items() if k not in seconds}.items() <= with_own.items()
        assert with_own["own_steps"] == plain["steps"]


def test_the_distance_is_that_to_what_was_received() -> None:
    federation = heads(quadratic_config(method="ditto"), LOSSES, [10, 30], [3, 3])
    federation.round(1)
    received = federation.head
    updates = federation.round(2)

    for k, update in enumerate(updates):
        distance = np.linalg.norm(own(federation, k) - received)
        assert update.numbers["own_distance"] == pytest.approx(distance, rel=1e-5)


def test_a_site_that_lost_its_model_begins_with_what_it_receives() -> None:
    weight, steps = 0.4, 3
    config = quadratic_config(method="ditto", ditto__lambda=weight)
    federation = heads(config, LOSSES, [10, 30], [steps, steps])
    federation.round(1)
    w = federation.head
    federation.sites[0].kept.clear()

    federation.round(2)

    (h, b), v = LOSSES[0], w.copy()
    for _ in range(steps):
        v = v - ETA * (h @ (v - b) + weight * (v - w))
    np.testing.assert_allclose(own(federation, 0), v, atol=1e-5)
