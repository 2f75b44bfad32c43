"""UBAR's two stages by hand and against a plain loop."""

import math

import numpy as np
import pytest

from fedapp.robust.ubar import nearest, not_worse, ubar


def test_the_distance_stage_keeps_the_nearest_share():
    own, peers = np.zeros(1), np.array([[5.0], [-1.0], [3.0], [-2.0], [9.0]])

    assert nearest(own, peers, 0.5).tolist() == [1, 3]
    assert nearest(own, peers, 1.0).tolist() == [1, 3, 2, 0, 4]
    assert nearest(own, peers, 0.01).tolist() == [1], "one at least"
    assert nearest(own, np.ones((3, 1)), 0.7).tolist() == [0, 1], "ties to the first"
    for rho in (0, 1.1):
        with pytest.raises(ValueError, match="rho"):
            nearest(own, peers, rho)


def test_the_loss_stage_keeps_who_is_not_worse_else_the_nearest():
    candidates = np.array([4, 1, 3])

    assert not_worse(candidates, np.array([0.5, 0.7, 0.6]), 0.6).tolist() == [4, 3]
    assert not_worse(candidates, np.array([0.9, 0.7, 0.8]), 0.6).tolist() == [4]
    assert not_worse(candidates, np.array([np.nan, 0.7, 0.6]), 0.6).tolist() == [3]


@pytest.mark.parametrize("seed", range(6))
def test_the_rule_by_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    own, peers = rng.standard_normal(8), rng.standard_normal((7, 8))
    target = rng.standard_normal(8)
    asked = []

    def loss(x):
        asked.append(x)
        return math.dist(x, target)

    shortlist = sorted(range(7), key=lambda j: math.dist(own, peers[j]))[:4]
    kept = [j for j in shortlist if math.dist(peers[j], target) <= math.dist(own, target)]
    kept = kept or shortlist[:1]
    expected = 0.3 * own + 0.7 * sum(peers[j] for j in kept) / len(kept)

    mixed, who = ubar(own, peers, loss, rho=0.6, alpha=0.3)

    np.testing.assert_allclose(mixed, expected)
    assert np.flatnonzero(who).tolist() == sorted(kept)
    assert len(asked) == 5, "a forward pass for the shortlist and oneself alone"
