"""Self-centred clipping by hand and against a plain loop."""

import math

import numpy as np
import pytest

from fedapp.robust.clipping import adaptive_radius, metropolis_weights, self_centred_clipping


def by_loop(own, peers, radius, weights):
    result = list(own)
    for weight, peer in zip(weights, peers, strict=True):
        length = math.dist(own, peer)
        for k in range(len(own)):
            result[k] += weight * (peer[k] - own[k]) * min(1, radius / length)
    return result


@pytest.mark.parametrize("radius", [0.5, 3.0, 100.0])
@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.05]])
def test_the_rule_by_a_plain_loop(radius, weights):
    rng = np.random.default_rng(0)
    own, peers = rng.standard_normal(15), 2 * rng.standard_normal((4, 15))
    expected = by_loop(own.tolist(), peers.tolist(), radius, weights or [0.2] * 4)

    np.testing.assert_allclose(self_centred_clipping(own, peers, radius, weights), expected)


def test_the_difference_is_clipped_not_the_weights():
    # By hand: differences [0, 6] and [8, 0], clipped to length 3; weights 1/3.
    own, peers = np.array([100.0, 100.0]), np.array([[100.0, 106.0], [108.0, 100.0]])

    np.testing.assert_allclose(self_centred_clipping(own, peers, 3.0), [101, 101])


def test_a_wide_radius_is_plain_gossip_and_a_zero_one_stays():
    rng = np.random.default_rng(0)
    own, peers = rng.standard_normal(5), rng.standard_normal((3, 5))

    wide = self_centred_clipping(own, peers, 1e9)
    np.testing.assert_allclose(wide, (own + peers.sum(axis=0)) / 4)
    np.testing.assert_array_equal(self_centred_clipping(own, peers, 0.0), own)


def test_the_adaptive_radius_is_the_second_largest_distance():
    own, peers = np.zeros(2), np.array([[3.0, 0.0], [0.0, 1e6], [0.0, 1.0]])

    assert adaptive_radius(np.array([3.0, 1e6, 1.0])) == 3
    assert adaptive_radius(np.array([4.0])) == 4
    assert adaptive_radius(np.array([])) == 0
    np.testing.assert_allclose(
        self_centred_clipping(own, peers), self_centred_clipping(own, peers, 3.0)
    )
    np.testing.assert_allclose(self_centred_clipping(own, peers), [0.75, 1.0])


def test_metropolis_weights_make_a_doubly_stochastic_matrix():
    edges = {0: [1, 2, 3], 1: [0, 2], 2: [0, 1], 3: [0]}
    matrix = np.zeros((4, 4))
    for i, neighbours in edges.items():
        matrix[i, neighbours] = metropolis_weights(
            len(neighbours), [len(edges[j]) for j in neighbours]
        )
        matrix[i, i] = 1 - matrix[i].sum()

    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert (np.diag(matrix) > 0).all()
    assert metropolis_weights(3, [3, 3, 3]) == [0.25] * 3
