"""The moments, the factor and the gate against plain loops, Monte Carlo and their fixed points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pflalign_loop import Coordinate, Loop

from client_app.methods.moments import (
    Scale,
    bias_scale,
    cosine_gate,
    direct_factor,
    moving_factor,
    noise_share,
    sign_agreement,
    sign_probability,
    update_moments,
)

PLAIN = Scale(1.0, 1.0)


class Walk:
    """The vectors of a site, moved on a gradient at a time."""

    def __init__(self, size: int, beta: float = 0.9, eps: float = 1e-12, correct: bool = True):
        self.m, self.v, self.p, self.spare = (torch.zeros(size) for _ in range(4))
        self.beta, self.eps, self.correct, self.t = beta, eps, correct, 0

    def step(self, g: torch.Tensor) -> torch.Tensor:
        self.t += 1
        update_moments(self.m, self.v, g, self.beta)
        scale = bias_scale(self.beta, self.t, self.t) if self.correct else PLAIN
        args = (self.p, g.clone(), self.m, self.v, scale, self.beta, self.eps, self.spare)
        return moving_factor(*args)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.99])
def test_the_recursion_is_that_of_a_plain_loop(correct: bool, beta: float) -> None:
    gradients = draw(1, 40, 7) * torch.logspace(-6, 2, 7) + torch.linspace(-1, 1, 7)
    walk, loop = Walk(7, beta, correct=correct), Loop(beta=beta, correct=correct)
    site = [Coordinate() for _ in range(7)]

    alphas = torch.stack([walk.step(g) for g in gradients])
    given_ = gradients.double().tolist()
    loop.round(site, [0.0] * 7, lambda t, _: given_[t], 40)

    expected = [x.p for x in site]
    np.testing.assert_allclose(walk.p.numpy(), expected, rtol=2e-5)
    np.testing.assert_allclose(
        alphas.numpy(), np.array([x.alphas for x in site]).T, rtol=1e-5, atol=2e-7
    )


NUMBERS = st.floats(-(2.0**50), 2.0**50, width=32)


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.sampled_from([0.0, 0.5, 0.9]), st.booleans())
def test_alpha_is_a_share(gradients: list[float], beta: float, correct: bool) -> None:
    walk = Walk(1, beta, correct=correct)
    for g in gradients:
        alpha = walk.step(torch.tensor([g])).item()
        assert 0 <= alpha <= 1
        assert walk.p.item() >= 0
        assert math.isfinite(walk.p.item())


@given(st.lists(NUMBERS, min_size=1, max_size=8), NUMBERS, st.booleans())
def test_the_gate_is_a_share(gradients: list[float], delta: float, correct: bool) -> None:
    walk = Walk(1, correct=correct)
    for g in gradients:
        walk.step(torch.tensor([g]))
    scale = bias_scale(0.9, walk.t, walk.t) if correct else PLAIN
    gamma = sign_probability(
        walk.m, walk.v, torch.tensor([delta]), scale, 1e-12, torch.zeros(1), torch.zeros(1)
    )
    assert 0 <= gamma.item() <= 1
    if delta == 0:
        assert gamma.item() == 0.5


@pytest.mark.parametrize("correct", [True, False])
def test_of_a_constant_gradient_the_factor_becomes_one(correct: bool) -> None:
    walk = Walk(5, correct=correct)
    gradient = torch.tensor([1e-3, -2.0, 5.0, -1e-4, 1e4])
    for _ in range(400):
        walk.step(gradient)

    torch.testing.assert_close(walk.p, torch.ones(5), rtol=1e-3, atol=0)


def test_of_noise_without_a_mean_the_factor_stays_at_the_floor_of_its_estimate() -> None:
    """m is a mean of about 19 gradients: ``E[m^2] / E[g^2] = (1 - beta) / (1 + beta) = 0.053``."""
    walk, means = Walk(4000), []
    for step in range(300):
        walk.step(draw(step, 4000))
        if step >= 100:
            means.append(walk.p.mean().item())

    floor = 0.1 / 1.9
    assert floor / 1.5 < np.mean(means) < 1.5 * floor
    assert walk.p.median() < 0.1


def test_between_the_two_the_factor_rises_with_the_signal() -> None:
    levels = torch.tensor([0.0, 0.3, 1.0, 3.0, 10.0]).repeat_interleave(500)
    walk = Walk(2500)
    for step in range(200):
        walk.step(levels + draw(step, 2500))

    means = walk.p.view(5, 500).mean(dim=1)
    assert (means.diff() > 0.02).all(), means
    assert means[-1] > 0.95


def test_without_gradients_nothing_moves_and_nothing_is_divided_by_zero() -> None:
    walk = Walk(3)
    walk.p.fill_(0.5)
    for _ in range(5):
        alpha = walk.step(torch.zeros(3))

    assert alpha.tolist() == [1.0] * 3
    assert walk.p.tolist() == [0.5] * 3
    gamma = sign_probability(
        walk.m, walk.v, torch.ones(3), PLAIN, 1e-12, torch.zeros(3), torch.zeros(3)
    )
    assert gamma.tolist() == [0.5] * 3
    direct_factor(walk.p, walk.m, walk.v, bias_scale(0.9, 5, 5), 0.9, 5, walk.spare)
    assert walk.p.tolist() == [0.0] * 3


@pytest.mark.parametrize(("m", "v"), [(0.3, 1.0), (-0.8, 0.7), (0.0, 2.0), (2.0, 4.5)])
@pytest.mark.parametrize("delta", [1.5, -0.01])
def test_the_gate_is_the_probability_of_the_sign(m: float, v: float, delta: float) -> None:
    gradients = np.random.default_rng(0).normal(m, math.sqrt(v - m * m), 200_000)
    expected = np.mean(np.sign(gradients) == np.sign(delta))

    gamma = sign_probability(
        *(torch.tensor([x]) for x in (m, v, delta)), PLAIN, 1e-12, torch.zeros(1), torch.zeros(1)
    )

    assert gamma.item() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(200_000))


def test_a_sure_gradient_decides_the_gate() -> None:
    m, delta = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([2.0, -2.0, 2.0, -2.0])
    out, spare = torch.zeros(4), torch.zeros(4)

    sure = sign_probability(m, m * m, delta, PLAIN, 1e-12, out, spare).clone()

    assert sure.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert sign_agreement(m, delta, out, spare).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_the_other_gates() -> None:
    m, delta = torch.tensor([3.0, 0.0, -4.0]), torch.tensor([1.0, 1.0, 0.0])
    out, spare = torch.zeros(3), torch.zeros(3)

    assert sign_agreement(m, delta, out, spare).tolist() == [1.0, 0.5, 0.5]
    cosine = 3 / (5 * math.sqrt(2))
    assert cosine_gate(m, delta).item() == pytest.approx(0.5 + cosine / 2)
    assert cosine_gate(m, torch.zeros(3)).item() == 0.5


@pytest.mark.parametrize("step", [1, 2, 10, 400])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_the_share_of_noise_is_the_sum_of_the_squared_weights(step: int, beta: float) -> None:
    weights = np.array([(1 - beta) * beta ** (step - 1 - k) for k in range(step)])
    weights /= weights.sum()

    assert noise_share(beta, step) == pytest.approx(float(np.square(weights).sum()))


def test_the_direct_factor_is_that_of_a_plain_loop() -> None:
    gradients = draw(3, 30, 6) + torch.linspace(0, 2, 6)
    m, v, p, spare = (torch.zeros(6) for _ in range(4))
    for t, g in enumerate(gradients, start=1):
        update_moments(m, v, g, 0.9)
        direct_factor(p, m, v, bias_scale(0.9, t, t), 0.9, t, spare)
    site = [Coordinate() for _ in range(6)]
    given_ = gradients.double().tolist()
    Loop(direct=True).round(site, [0.0] * 6, lambda t, _: given_[t], 30)

    np.testing.assert_allclose(p.numpy(), [x.p for x in site], rtol=1e-4)
    assert ((p >= 0) & (p <= 1)).all()
