"""FedNova against its formulas, and its fixed point where FedAvg's is biased."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from quadratic import heads, quadratic_config, regressions

from fedapp.adapter import Adapter
from fedapp.errors import UpdateRefused
from server_app.training_round import validate

LOSSES = [
    (np.eye(2), np.array([1.0, -1.0])),
    (np.diag([1.0, 2.0]), np.array([-2.0, 4.0])),
    (np.diag([0.5, 1.0]), np.array([0.0, 3.0])),
]
EXAMPLES, STEPS = [10, 30, 60], [2, 16, 5]
SHARES = np.array(EXAMPLES) / sum(EXAMPLES)


def optimum() -> np.ndarray:
    h = sum(p * h for p, (h, _) in zip(SHARES, LOSSES, strict=True))
    x: np.ndarray = np.linalg.solve(
        h, sum(p * h @ b for p, (h, b) in zip(SHARES, LOSSES, strict=True))
    )
    return x


def local(
    x: np.ndarray, h: np.ndarray, b: np.ndarray, steps: int, eta: float, rho: float
) -> np.ndarray:
    y, v = x.copy(), np.zeros_like(x)
    for _ in range(steps):
        v = rho * v + h @ (y - b)
        y = y - eta * v
    return y


def published(steps: int, rho: float) -> float:
    """``||a_i||_1`` of SGD with momentum (section 4 of the paper)."""
    if rho == 0:
        return float(steps)
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_every_round_is_the_published_one(rho: float) -> None:
    eta = 0.05
    config = quadratic_config(
        federation__algorithm="fednova", train__momentum=rho, train__learning_rate=eta
    )
    federation = heads(config, LOSSES, EXAMPLES, STEPS)

    x = np.zeros(2)
    for number in range(1, 6):
        updates = federation.round(number)
        a = np.array([published(steps, rho) for steps in STEPS])
        directions = [
            (x - local(x, h, b, steps, eta, rho)) / a[k]
            for k, ((h, b), steps) in enumerate(zip(LOSSES, STEPS, strict=True))
        ]
        effective = float(SHARES @ a)
        x = x - effective * sum(p * d for p, d in zip(SHARES, directions, strict=True))
        np.testing.assert_allclose([u.numbers["accumulation"] for u in updates], a, rtol=1e-6)
        assert federation.numbers["effective_steps"] == pytest.approx(effective)
        np.testing.assert_allclose(federation.head, x, atol=1e-5)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_sites_with_more_steps_do_not_move_the_fixed_point(rho: float) -> None:
    """A round is affine in the model, so that three rounds tell the fixed point."""
    distances = {}
    for algorithm in ("fedavg", "fednova"):
        config = quadratic_config(
            federation__algorithm=algorithm, train__momentum=rho, train__learning_rate=0.002
        )
        ends = []
        for x in (np.zeros(2), np.eye(2)[0], np.eye(2)[1]):
            federation = heads(config, LOSSES, EXAMPLES, STEPS)
            federation.strategy.adapter = Adapter({}, {"head.weight": x.astype(np.float32)})
            federation.round(1)
            ends.append(federation.head)
        slope = np.stack([ends[1] - ends[0], ends[2] - ends[0]], axis=1)
        fixed = np.linalg.solve(np.eye(2) - slope, ends[0])
        distances[algorithm] = np.linalg.norm(fixed - optimum())

    assert distances["fedavg"] > 0.5
    assert distances["fednova"] < 0.05


def test_a_schedule_counts_steps_by_their_rate_and_adamw_counts_them() -> None:
    for optimizer, schedule, expected in (
        ("sgd", "linear", sum(1 - k / 4 for k in range(4))),
        ("adamw", "constant", 4.0),
    ):
        config = quadratic_config(
            federation__algorithm="fednova",
            train__optimizer=optimizer,
            train__schedule=schedule,
            federation__rounds=1,
        )
        (update,) = heads(config, LOSSES[:1], [10], [4]).round(1)
        assert update.numbers["accumulation"] == pytest.approx(expected)


@pytest.mark.parametrize("method", ["svd", "fedsvd", "ffa-lora"])
def test_the_work_is_scaled_before_the_merge_of_any_method(method: str) -> None:
    config = quadratic_config(method=method, federation__algorithm="fednova")
    federation, plain = regressions(config), regressions(config)
    replies = [site.train(plain.strategy, 1) for site in plain.sites]
    a = np.array([reply.numbers["accumulation"] for reply in replies])
    shares = np.array([reply.weight for reply in replies]) / 45.0
    sent = dict(plain.strategy.payloads(1, "site-0")["adapter"].arrays())

    federation.round(1)

    scaled = []
    for number, reply in zip(a, replies, strict=True):
        update = validate(plain.strategy, 1, reply)
        factor = float(shares @ a) / number
        scaled.append(
            replace(
                update,
                decoded={
                    "adapter": update.adapter.map(
                        lambda name, array, f=factor: (
                            sent[name] + np.float32(f) * (array - sent[name])
                        )
                    )
                },
            )
        )
    expected = plain.strategy.merge(1, scaled)
    for (name, one), (_, other) in zip(
        federation.strategy.adapter.arrays(), expected.arrays(), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf, 1e-30])
def test_an_absurd_number_is_refused_with_its_site(value: float | None) -> None:
    config = quadratic_config(federation__algorithm="fednova")
    federation = heads(config, LOSSES, EXAMPLES, STEPS)
    updates = [
        validate(federation.strategy, 1, site.train(federation.strategy, 1))
        for site in federation.sites
    ]
    updates[1].numbers = {} if value is None else {"accumulation": value}

    with pytest.raises(UpdateRefused, match=r"site site-1, round 1: .*accumulation") as caught:
        federation.strategy.aggregate(1, updates)

    assert caught.value.site == "site-1"
    assert federation.strategy.adapter is federation.initial
