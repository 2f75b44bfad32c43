"""Agreement of outputs, against plain loops and by hand."""

import numpy as np
import pytest
import scipy.special

from fedapp.outputs import (
    Profile,
    prediction_agreement,
    profile,
    profile_agreement,
    softmax,
)


def probabilities(seed, rows=30, classes=4):
    return softmax(3 * np.random.default_rng(seed).standard_normal((rows, classes)))


def test_softmax_is_scipys_and_stands_large_logits():
    logits = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32) * 1e4

    np.testing.assert_allclose(softmax(logits), scipy.special.softmax(logits.astype(float), axis=1))


def test_prediction_agreement_is_a_cosine_of_centred_columns():
    i, j = probabilities(0), probabilities(1)
    centred = [np.array([column - column.mean() for column in p.T]).ravel() for p in (i, j)]
    oracle = (
        centred[0] @ centred[1] / np.sqrt((centred[0] @ centred[0]) * (centred[1] @ centred[1]))
    )

    assert prediction_agreement(i, j) == pytest.approx(oracle, abs=1e-12)
    assert prediction_agreement(i, j) == prediction_agreement(j, i)
    assert prediction_agreement(i, i) == pytest.approx(1)


def test_it_sees_what_the_kernel_does_not():
    logits = 3 * np.random.default_rng(0).standard_normal((200, 4))
    own = softmax(logits)

    assert prediction_agreement(own, softmax(-logits)) < -0.3
    assert abs(prediction_agreement(own, softmax(np.roll(logits, 1, axis=1)))) < 0.4
    assert prediction_agreement(own, softmax(logits + 0.1)) == pytest.approx(1)
    two = softmax(logits[:, :2])
    assert prediction_agreement(two, 1 - two) == pytest.approx(-1), "a flipped mask, too"
    assert prediction_agreement(two[:, :1], 1 - two[:, :1]) == pytest.approx(-1)


def test_outputs_that_do_not_vary_or_are_broken_agree_with_nobody():
    own = probabilities(0)
    one_answer = np.tile(own[:1], (30, 1))
    broken = own.copy()
    broken[3, 1] = np.nan

    for other in (one_answer, broken, np.ones_like(own)):
        assert prediction_agreement(own, other) == 0
        assert prediction_agreement(other, other) == 0
    for rows in range(3):
        assert prediction_agreement(own[:rows], own[:rows]) == 0
    assert prediction_agreement(own[:3], own[:3]) == pytest.approx(1)
    with pytest.raises(ValueError, match="one shape"):
        prediction_agreement(own, own[:, :3])


@pytest.mark.parametrize("seed", range(5))
def test_the_profile_by_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    p, labels = probabilities(seed, rows=100), rng.integers(0, 4, 100)
    error = 0.0
    for b in range(15):
        inside = [k for k in range(100) if b / 15 < max(p[k]) <= (b + 1) / 15]
        if inside:
            right = np.mean([p[k].argmax() == labels[k] for k in inside])
            error += len(inside) / 100 * abs(right - np.mean([max(p[k]) for k in inside]))

    measured = profile(p, labels)

    assert measured.calibration_error == pytest.approx(error, abs=1e-12)
    assert measured.accuracy == np.mean([p[k].argmax() == labels[k] for k in range(100)])
    assert measured.sharpness == pytest.approx(np.mean([max(row) for row in p]))


def test_certainty_falls_into_the_last_bin():
    certain = profile(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))

    assert certain == Profile(accuracy=0.5, calibration_error=0.5, sharpness=1.0)


def test_a_bin_holds_its_upper_edge():
    # 0.6 = 9/15 and 0.55 share the bin (8/15, 9/15]: |(1 - 0.6) + (0 - 0.55)| / 2.
    measured = profile(np.array([[0.6, 0.4], [0.45, 0.55]]), np.array([0, 0]))

    assert measured.calibration_error == pytest.approx(0.075)


def test_agreement_of_profiles_by_hand():
    own = Profile(0.9, 0.1, 0.8)

    assert profile_agreement(own, own) == 1
    assert profile_agreement(own, Profile(0.6, 0.2, 0.3)) == pytest.approx((0.7 + 0.9 + 0.5) / 3)
    assert profile_agreement(own, Profile(0.9, 0.1, 3.0)) == pytest.approx(2 / 3), "none below 0"


def test_a_broken_peer_has_no_profile_to_agree_with():
    nan = profile(np.array([[np.nan, 0.5], [0.4, 0.6]]), np.array([0, 1]))

    assert np.isnan(nan.accuracy)
    assert profile_agreement(Profile(0.9, 0.1, 0.8), nan) == 0


def test_a_profile_needs_labels():
    with pytest.raises(ValueError, match=r"n >= 1, got \(0, 2\) and \(0,\)"):
        profile(np.zeros((0, 2)), np.zeros(0, int))
    with pytest.raises(ValueError, match=r"got \(3, 2\) and \(2,\)"):
        profile(np.zeros((3, 2)), np.zeros(2, int))
