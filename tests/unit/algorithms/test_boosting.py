"""The algorithms where every round trains a fresh B in its own basis: products, not factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quadratic import QuadraticFederation, bases_of, quadratic_config, regressions, snapshot

from fedapp.adapter import Adapter
from server_app.updates import Update

METHODS = ["dysco", "random-boost"]
ETA, STEPS = 0.05, [3, 5, 7]
SHARES = np.array([10, 15, 20]) / 45


def federation_of(method: str, algorithm: str, **flat: Any) -> QuadraticFederation:
    return regressions(
        quadratic_config(
            method=method, federation__algorithm=algorithm, train__learning_rate=ETA, **flat
        )
    )


def product(adapter: Adapter) -> np.ndarray:
    pair = adapter.pairs["q"]
    return pair.scaling * pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64)


def learned(federation: QuadraticFederation) -> np.ndarray:
    """All that was folded (which the sites of `quadratic` do not add to their losses)."""
    folded = snapshot(federation.strategy).get("folded")
    return np.zeros((6, 5)) if folded is None else product(folded)


def play(federation: QuadraticFederation, number: int) -> list[Update]:
    bases_of(federation, number)
    return federation.round(number)


def local_b(site: Any, a_rn: np.ndarray, steps: int, pull: float = 0.0, c: Any = 0.0) -> Any:
    """Plain SGD on B from zero, with a penalty pull/2 ||B||^2 and a correction c of gradients."""
    target, x = site.loss.target_mn.double().numpy(), site.loss.x_nt.double().numpy()
    b = np.zeros((target.shape[0], a_rn.shape[0]))
    gradients = []
    for _ in range(steps):
        gradient = (b @ a_rn - target) @ x @ (a_rn @ x).T / x.shape[1]
        gradients.append(gradient)
        b = b - ETA * (gradient + pull * b + c)
    return b, np.mean(gradients, axis=0)


def starts(federation: QuadraticFederation, number: int) -> list[np.ndarray]:
    return [
        federation.strategy.payloads(number, site.name)["adapter"]
        .pairs["q"]
        .a_rn.astype(np.float64)
        for site in federation.sites
    ]


@pytest.mark.parametrize("method", METHODS)
def test_the_target_of_fedprox_is_zero(method: str) -> None:
    federation = federation_of(method, "fedprox", fedprox__mu=0.8)
    for number in (1, 2):
        bases_of(federation, number)
        a = starts(federation, number)
        updates = federation.round(number)
        for k, site in enumerate(federation.sites):
            b, _ = local_b(site, a[k], STEPS[k], pull=0.8)
            np.testing.assert_allclose(updates[k].adapter.pairs["q"].b_mr, b, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_fednova_divides_every_b_by_its_steps(method: str) -> None:
    federation = federation_of(method, "fednova")
    for number in (1, 2):
        bases_of(federation, number)
        a, before = starts(federation, number), learned(federation)
        federation.round(number)
        effective = float(SHARES @ np.array(STEPS))
        expected = before
        for k, site in enumerate(federation.sites):
            b, _ = local_b(site, a[k], STEPS[k])
            expected = expected + SHARES[k] * effective / STEPS[k] * b @ a[k]
        np.testing.assert_allclose(learned(federation), expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dampening", [False, True])
def test_fedavgm_has_momentum_on_the_product_of_a_round(method: str, dampening: bool) -> None:
    beta, rate = 0.7, 0.6
    federation = federation_of(
        method,
        "fedavgm",
        fedavgm__momentum=beta,
        fedavgm__server_lr=rate,
        fedavgm__dampening=dampening,
        fedavgm__rank_cap=30,
    )
    u, w = np.zeros((6, 5)), np.zeros((6, 5))
    for number in range(1, 5):
        updates = play(federation, number)
        d = sum(p * product(x.adapter) for p, x in zip(SHARES, updates, strict=True))
        u = beta * u + ((1 - beta) if dampening else 1.0) * d
        w = w + rate * u
        np.testing.assert_allclose(learned(federation), w, atol=1e-5)
        assert federation.numbers["momentum_error"] < 1e-6


def test_the_momentum_of_products_is_kept_at_a_bounded_rank() -> None:
    federation = federation_of("dysco", "fedavgm", fedavgm__rank_cap=3)
    for number in (1, 2, 3):
        play(federation, number)

    velocity = snapshot(federation.strategy)["algorithm.velocity"].pairs["q"]
    assert velocity.rank == 3
    assert 0 < federation.numbers["momentum_error"] < 1


def test_what_the_rank_cap_takes_of_the_variates_is_told() -> None:
    """The error of cutting the variate that an uncapped run has, while both are the same."""
    exact = federation_of("dysco", "scaffold", scaffold__rank_cap=30)
    capped = federation_of("dysco", "scaffold", scaffold__rank_cap=1)
    for federation in (exact, capped):
        play(federation, 1)

    assert exact.numbers["variate_error"] < 1e-6
    whole = snapshot(exact.strategy)["algorithm.lifted"].pairs["q.lora_B"]
    s = np.linalg.svd(whole.b_mr @ whole.a_rn, compute_uv=False)
    error = np.linalg.norm(s[1:]) / np.linalg.norm(s)
    assert error > 0.01
    assert capped.numbers["variate_error"] == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_variates_follow_the_basis(method: str) -> None:
    """``c A_old A_new^T``: C = sum_k p_k C_k as matrices; a site reads C A^T and C_k A^T."""
    federation = federation_of(method, "scaffold", scaffold__rank_cap=30)
    own, shared = np.zeros((3, 6, 5)), np.zeros((6, 5))
    for number in range(1, 5):
        bases_of(federation, number)
        a = starts(federation, number)
        assert np.allclose(a[0] @ a[0].T, np.eye(2), atol=1e-6)
        before = shared.copy()
        updates = federation.round(number)
        for k, site in enumerate(federation.sites):
            correction = (before - own[k]) @ a[k].T
            b, gradient = local_b(site, a[k], STEPS[k], c=correction)
            np.testing.assert_allclose(updates[k].adapter.pairs["q"].b_mr, b, atol=2e-5)
            change = (gradient - own[k] @ a[k].T) @ a[k]
            own[k] += change
            shared += SHARES[k] * change
        lifted = snapshot(federation.strategy)["algorithm.lifted"].pairs["q.lora_B"]
        np.testing.assert_allclose(lifted.b_mr @ lifted.a_rn, shared, atol=2e-5)
