"""Norm clipping by hand and against a plain loop."""

import math
import statistics

import numpy as np
import pytest

from fedapp.robust.norm_clipping import norm_clipping


@pytest.mark.parametrize("bound", [None, 0.5, 2.0, 1e9])
def test_the_rule_by_a_plain_loop(bound):
    rng = np.random.default_rng(0)
    updates, records = rng.standard_normal((5, 7)) * [[1], [2], [3], [4], [50]], [3, 1, 4, 1, 5]
    norms = [math.hypot(*u) for u in updates.tolist()]
    limit = statistics.median(norms) if bound is None else bound

    update, left = norm_clipping(updates, records, bound)

    expected = [
        sum(
            n / sum(records) * min(1, limit / norm) * u[k]
            for n, norm, u in zip(records, norms, updates.tolist(), strict=True)
        )
        for k in range(7)
    ]
    np.testing.assert_allclose(update, expected)
    np.testing.assert_allclose(left, [min(1, limit / norm) for norm in norms])


def test_by_hand():
    # Lengths 5 and 50, cut to 5; an update of zero is left as it is.
    update, left = norm_clipping(np.array([[3.0, 4.0], [30.0, 40.0], [0.0, 0.0]]), [1, 1, 2], 5.0)

    np.testing.assert_allclose(update, [1.5, 2.0])
    np.testing.assert_allclose(left, [1, 0.1, 1])
