"""The trimmed mean against a plain loop."""

import numpy as np
import pytest

from fedapp.robust.trimmed_mean import trimmed_mean


@pytest.mark.parametrize("trim", [0, 1, 3])
def test_the_rule_by_a_plain_loop(trim):
    vectors = np.random.default_rng(0).standard_normal((8, 13))
    expected = []
    for column in vectors.T:
        left = sorted(column)[trim : 8 - trim]
        expected.append(sum(left) / len(left))

    np.testing.assert_allclose(trimmed_mean(vectors, trim), expected)


def test_something_must_be_left():
    with pytest.raises(ValueError, match="of 8 models 4 cannot be trimmed"):
        trimmed_mean(np.zeros((8, 2)), 4)
