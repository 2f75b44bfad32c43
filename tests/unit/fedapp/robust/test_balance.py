"""BALANCE against a plain loop, and without the defects of a later comparison."""

import math

import numpy as np
import pytest

from fedapp.robust.balance import balance


def by_loop(own, peers, t, total, gamma, kappa, alpha):
    bound = gamma * math.exp(-kappa * t / total) * math.sqrt(sum(x * x for x in own))
    accepted = [math.dist(own, peer) <= bound for peer in peers]
    chosen = [peer for peer, ok in zip(peers, accepted, strict=True) if ok]
    if not chosen:
        return list(own), accepted
    return [
        alpha * x + (1 - alpha) * sum(peer[k] for peer in chosen) / len(chosen)
        for k, x in enumerate(own)
    ], accepted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("t", [0, 4, 9])
def test_the_rule_by_a_plain_loop(seed, t):
    rng = np.random.default_rng(seed)
    own = rng.standard_normal(20)
    peers = own + np.linspace(0.05, 0.5, 7)[:, None] * rng.standard_normal((7, 20))

    expected, accepted = by_loop(own.tolist(), peers.tolist(), t, 10, 0.3, 1.0, 0.5)
    mixed, who = balance(own, peers, round=t, rounds=10, gamma=0.3, kappa=1.0, alpha=0.5)

    np.testing.assert_allclose(mixed, expected)
    assert who.tolist() == accepted
    assert 0 < sum(accepted) < 7


def test_the_radius_shrinks_by_hand():
    own, peers = np.array([10.0]), np.array([[13.0], [12.0], [8.9]])  # radii 3 and 3/e = 1.1036

    _, first = balance(own, peers, round=0, rounds=5, gamma=0.3, kappa=1, alpha=0.5)
    mixed, last = balance(own, peers, round=5, rounds=5, gamma=0.3, kappa=1, alpha=0.5)

    assert first.tolist() == [True, True, True]
    assert last.tolist() == [False, False, True]
    assert mixed == pytest.approx([9.45])


def test_weights_add_up_to_one_and_a_lonely_model_keeps_its_length():
    own = np.array([3.0, 4.0])

    same, _ = balance(own, np.tile(own, (3, 1)), round=0, rounds=1, gamma=0.3, kappa=1, alpha=0.5)
    alone, who = balance(own, -own[None], round=0, rounds=1, gamma=0.3, kappa=1, alpha=0.5)

    np.testing.assert_allclose(same, own)
    assert alone is own
    assert not who.any()
