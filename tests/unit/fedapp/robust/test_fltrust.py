"""FLTrust by hand and against a plain loop."""

import math

import numpy as np
import pytest

from fedapp.robust.fltrust import fltrust


def by_loop(trusted, updates):
    length = math.hypot(*trusted)
    trust, total = [], [0.0] * len(trusted)
    for update in updates:
        inner = sum(x * y for x, y in zip(update, trusted, strict=True))
        trust.append(max(0, inner / (math.hypot(*update) * length)))
        for k, x in enumerate(update):
            total[k] += trust[-1] * length / math.hypot(*update) * x
    return [x / sum(trust) for x in total], trust


@pytest.mark.parametrize("seed", range(5))
def test_the_rule_by_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    trusted, updates = rng.standard_normal(6), 5 * rng.standard_normal((9, 6))
    expected, trust = by_loop(trusted.tolist(), updates.tolist())

    update, scores = fltrust(trusted, updates)

    np.testing.assert_allclose(update, expected)
    np.testing.assert_allclose(scores, trust)
    assert 0 < np.count_nonzero(scores) < 9


def test_by_hand():
    # cos 1, 0.6 and -1; lengths taken from the trusted update: [2, 0], [1.2, 1.6].
    update, trust = fltrust(np.array([2.0, 0.0]), np.array([[100.0, 0.0], [3.0, 4.0], [-1e6, 0.0]]))

    np.testing.assert_allclose(trust, [1, 0.6, 0])
    np.testing.assert_allclose(update, [(2 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6])
    assert np.linalg.norm(update) <= 2


def test_without_trust_nothing_moves():
    own = np.array([1.0, 0.0])

    for updates in (-own[None], np.zeros((3, 2)), np.array([[0.0, 1.0]]), np.zeros((0, 2))):
        update, trust = fltrust(own, updates)
        np.testing.assert_array_equal(update, 0)
        assert not trust.any()
    np.testing.assert_array_equal(fltrust(np.zeros(2), own[None])[0], 0)
