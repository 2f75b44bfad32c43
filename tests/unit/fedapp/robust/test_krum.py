"""Krum and Multi-Krum against a plain loop over all pairs."""

import math

import numpy as np
import pytest

from fedapp.robust.krum import krum, krum_scores, largest_faulty, multi_krum


def scores_by_loop(vectors, faulty):
    scores = []
    for i, x in enumerate(vectors):
        squares = sorted(math.dist(x, y) ** 2 for j, y in enumerate(vectors) if j != i)
        scores.append(sum(squares[: len(vectors) - faulty - 2]))
    return scores


@pytest.mark.parametrize(("sites", "faulty"), [(3, 0), (5, 1), (9, 3), (8, 5)])
def test_scores_by_a_plain_loop(sites, faulty):
    vectors = np.random.default_rng(0).standard_normal((sites, 11))
    expected = scores_by_loop(vectors.tolist(), faulty)

    np.testing.assert_allclose(krum_scores(vectors, faulty), expected)
    chosen, index = krum(vectors, faulty)
    assert index == int(np.argmin(expected))
    np.testing.assert_array_equal(chosen, vectors[index])
    for count in range(1, sites + 1):
        best = sorted(range(sites), key=lambda k: expected[k])[:count]
        mean, who = multi_krum(vectors, faulty, count)
        np.testing.assert_allclose(mean, sum(vectors[k] for k in best) / count)
        assert np.flatnonzero(who).tolist() == sorted(best)


def test_distances_are_squared():
    # Of its two nearest, 0 has distances 3 and 3 (sum 6, squares 18), the pair at 10 and 10.9 have
    # 0.9 and 4.9 or more. Plain distances would choose another model than squared ones do.
    vectors = np.array([[0.0], [3.0], [-3.0], [10.0], [10.9], [15.8]])
    plain = [
        sum(sorted(abs(x - y) for j, y in enumerate(vectors[:, 0]) if j != i)[:2])
        for i, x in enumerate(vectors[:, 0])
    ]

    assert int(np.argmin(plain)) == 4
    assert krum(vectors, 2)[1] == 0


def test_nearly_equal_models_far_from_zero_are_told_apart():
    vectors = (1e3 + 1e-3 * np.random.default_rng(0).standard_normal((6, 50))).astype(np.float32)

    np.testing.assert_allclose(krum_scores(vectors, 1), scores_by_loop(vectors.tolist(), 1))


def test_ties_go_to_the_first():
    assert krum(np.zeros((5, 2)), 1)[1] == 0
    assert multi_krum(np.zeros((5, 2)), 1, 2)[1].tolist() == [True, True, False, False, False]


def test_how_many_faulty_ones_it_can_bear():
    assert [largest_faulty(sites) for sites in (2, 3, 5, 8, 9)] == [0, 0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"at least f \+ 3 models and f >= 0, got 8 and f = 6"):
        krum(np.zeros((8, 2)), 6)
    with pytest.raises(ValueError, match="count"):
        multi_krum(np.zeros((5, 2)), 1, 6)
