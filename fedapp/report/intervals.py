"""How far an accuracy on a small test set can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Z_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


class Interval(NamedTuple):
    """Lower and upper 95 % limit."""

    low: float
    high: float


def wilson(proportion: float, examples: float) -> Interval | None:
    """Wilson score interval (E. B. Wilson, 1927) of a proportion seen on ``examples`` trials.

    Parameters
    ----------
    proportion : float
        Share of successes, in [0, 1].
    examples : float
        Number of trials; below one there is no interval.
    """
    if not examples >= 1 or not 0 <= proportion <= 1:
        return None
    z2 = Z_95**2
    denominator = 1 + z2 / examples
    centre = (proportion + z2 / (2 * examples)) / denominator
    half = Z_95 * math.sqrt(proportion * (1 - proportion) / examples + z2 / (4 * examples**2))
    half /= denominator
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def mean_interval(proportions: Sequence[float], examples: Sequence[float]) -> Interval | None:
    """95 % interval of the unweighted mean of independent proportions.

    Combines the Wilson limits by the square-and-add rule (MOVER; Newcombe 1998, Zou and Donner
    2008): the distance of each limit from its estimate plays the part of a standard error.
    """
    limits = [wilson(p, n) for p, n in zip(proportions, examples, strict=True)]
    known = [limit for limit in limits if limit is not None]
    if not known or len(known) != len(limits):
        return None
    count = len(known)
    mean = math.fsum(proportions) / count
    pairs = list(zip(proportions, known, strict=True))
    below = math.sqrt(math.fsum((p - limit.low) ** 2 for p, limit in pairs)) / count
    above = math.sqrt(math.fsum((limit.high - p) ** 2 for p, limit in pairs)) / count
    return Interval(max(0.0, mean - below), min(1.0, mean + above))


def difference_noise(
    better: float, better_interval: Interval, worse: float, worse_interval: Interval
) -> float:
    """Half-width that a difference of two estimates must exceed to stand out of noise.

    Square-and-add again, treating the two as independent. Two models tested on the same examples
    usually err on the same ones, so the true noise is, if anything, smaller.
    """
    return math.hypot(better - better_interval.low, worse_interval.high - worse)
