"""FedProx against the closed form of its local problem."""

from __future__ import annotations

import numpy as np
import pytest
from quadratic import heads, parameters_of, quadratic_config, regressions

from client_app.algorithms.compose import build_rule

H = np.diag([2.0, 0.5, 1.0])
B = np.array([1.0, -2.0, 3.0])


def test_a_site_reaches_the_minimiser_of_its_loss_and_the_penalty() -> None:
    mu = 0.7
    config = quadratic_config(federation__algorithm="fedprox", fedprox__mu=mu)
    federation = heads(config, [(H, B)], [10], [300])

    for number in (1, 2):
        start = federation.head
        federation.round(number)

        # argmin F(w) + mu/2 ||w - x||^2 solves (H + mu I) w = H b + mu x
        expected = np.linalg.solve(H + mu * np.eye(3), H @ B + mu * start)
        np.testing.assert_allclose(federation.head, expected, atol=1e-5)


def test_each_local_step_is_the_published_one() -> None:
    eta, mu, steps = 0.1, 0.7, 5
    config = quadratic_config(federation__algorithm="fedprox", fedprox__mu=mu)
    federation = heads(config, [(H, B), (2 * H, -B)], [10, 30], [steps, steps])

    x = np.zeros(3)
    for number in (1, 2, 3):
        federation.round(number)
        ends = []
        for h, b in ((H, B), (2 * H, -B)):
            w = x.copy()
            for _ in range(steps):
                w = w - eta * (h @ (w - b) + mu * (w - x))
            ends.append(w)
        x = 0.25 * ends[0] + 0.75 * ends[1]
        np.testing.assert_allclose(federation.head, x, atol=1e-5)


def test_without_a_weight_it_is_fedavg_bit_for_bit() -> None:
    digests = []
    for algorithm, more in (("fedavg", {}), ("fedprox", {"fedprox__mu": 0.0})):
        federation = regressions(quadratic_config(federation__algorithm=algorithm, **more))
        for number in (1, 2):
            federation.round(number)
        digests.append(federation.strategy.adapter.digest())

    assert digests[0] == digests[1]


def test_an_array_without_a_gradient_is_pulled_back_and_a_frozen_one_left_alone() -> None:
    config = quadratic_config(method="fedsvd", federation__algorithm="fedprox", fedprox__mu=0.5)
    federation = regressions(config)
    site = federation.sites[0]
    live = parameters_of(federation.initial.pairs, federation.initial.tensors)
    rule = build_rule(config, live)
    rule.begin({"adapter": federation.initial}, {}, 1)
    start = live.pairs["q"].b_mr.detach().clone()
    live.pairs["q"].b_mr.data += 2.0

    rule.transform_gradients()

    pulled = live.pairs["q"].b_mr.grad
    assert pulled is not None
    np.testing.assert_allclose(pulled.numpy(), 0.5 * 2.0 * np.ones(start.shape), rtol=1e-6)
    assert live.pairs["q"].a_rn.grad is None
    assert rule.numbers()["prox_distance"] == pytest.approx(2.0 * start.numel() ** 0.5)
    assert site.name == "site-0"
