"""The median against a plain loop."""

import statistics

import numpy as np
import pytest

from fedapp.robust.median import median


@pytest.mark.parametrize("sites", [1, 2, 7, 8])
def test_the_rule_by_a_plain_loop(sites):
    vectors = np.random.default_rng(0).standard_normal((sites, 13))

    expected = [statistics.median(column) for column in vectors.T.tolist()]
    np.testing.assert_allclose(median(vectors), expected)
