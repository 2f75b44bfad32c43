"""How long to wait before a failed peer is tried again."""

from __future__ import annotations

import random


class Backoff:
    """Doubling waits up to a cap, each drawn from its upper half.

    The draw keeps many nodes that lost the same peer from coming back at the same moment.

    Parameters
    ----------
    base, cap : float
        First and longest wait in seconds.
    """

    def __init__(self, base: float, cap: float) -> None:
        self._base, self._cap = base, cap
        self._failures = 0
        self._random = random.Random()  # noqa: S311  # no secret

    def next(self) -> float:
        """Return how long to wait after one more failure."""
        # 2**64 seconds are beyond any cap, and a float.
        longest = min(self._cap, self._base * 2.0 ** min(self._failures, 64))
        self._failures += 1
        return longest * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again at the first wait: the peer has answered."""
        self._failures = 0
