"""The numbers of a report: intervals against scipy, units, and what is too absurd to draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedapp.report.intervals import Interval, difference_noise, mean_interval, wilson
from fedapp.report.run_data import number
from fedapp.report.units import duration, size


def test_interval_is_wilsons() -> None:
    for successes, trials in [(0, 5), (5, 5), (20, 25), (331, 400)]:
        expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        assert wilson(successes / trials, trials) == pytest.approx(tuple(expected), abs=1e-12)
    assert wilson(0.5, 0) is None
    assert wilson(1.5, 10) is None


def test_mean_interval_covers_the_true_mean() -> None:
    truth, sizes = np.array([0.9, 0.75, 0.95, 0.7]), np.array([61, 59, 25, 40])
    generator = np.random.default_rng(1)
    draws = generator.binomial(sizes, truth, size=(4000, 4)) / sizes
    limits = np.array([mean_interval(draw, sizes) for draw in draws])
    inside = (limits[:, 0] <= truth.mean()) & (truth.mean() <= limits[:, 1])
    assert 0.935 <= inside.mean() <= 0.97
    assert mean_interval([0.8], [25]) == pytest.approx(wilson(0.8, 25))


def test_noise_of_a_difference_adds_in_squares() -> None:
    noise = difference_noise(0.8, Interval(0.76, 0.83), 0.7, Interval(0.65, 0.73))
    assert noise == pytest.approx(math.hypot(0.04, 0.03))


def test_units() -> None:
    assert [size(n) for n in (0, 999, 301_072, 1_204_288, 5e9, None)] == [
        "0 B", "999 B", "301 kB", "1.2 MB", "5 GB", "–",
    ]  # fmt: skip
    assert [duration(s) for s in (0.84, 38.2, 59.7, 175, 3725, 7199.9)] == [
        "0.8 s", "38 s", "1 min 0 s", "2 min 55 s", "1 h 2 min", "2 h 0 min",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), 1e308, float("nan"), float("inf"), None, "1", True]
)
def test_absurd_numbers_are_not_drawn(value: object) -> None:
    assert number(value) is None


def test_a_share_of_less_than_one_example_has_no_interval() -> None:
    assert wilson(0.5, 1e-320) is None
    assert wilson(0.5, float("nan")) is None
