"""The base of the robust baselines: a rule of `fedapp.robust` in place of the mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from fedapp.adapter import Adapter
from fedapp.errors import MergeRefused
from fedapp.robust.vectors import Vector, Vectors, from_vector, to_vector
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update

Weights = Sequence[float]


class Robust(BaseStrategy):
    """Merge vectors: all numbers that travel, of a LoRA pair those of A and of B.

    The rules know nothing of products; a site's share of the records counts only where the rule
    says so.
    """

    _told: dict[str, float] | None = None

    @abstractmethod
    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, Weights | None]:
        """Return the merged model and what each site weighs in it, None if that has no meaning.

        Parameters
        ----------
        models_kp : ndarray, shape (K, P)
        updates : sequence of Update
            Whose they are, sorted by site name.

        Raises
        ------
        ValueError
            If the rule has no value for so many models, or these.
        """

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return what the rule makes of the updates."""
        models_kp = np.stack([to_vector(update.adapter) for update in updates])
        try:
            merged_p, weights = self.rule(models_kp, updates)
        except ValueError as error:
            raise MergeRefused(f"method {self.config.method}: {error}", round=round) from None
        self._told = None
        if weights is not None:
            self._told = {u.site: float(w) for u, w in zip(updates, weights, strict=True)}
        return from_vector(merged_p, self.adapter)

    def numbers(self) -> dict[str, float]:
        """Return the share of the sites that count in the merge.

        ``accepted``, and where sites are faulty on purpose ``accepted_honest`` and
        ``accepted_faulty``.
        """
        if self._told is None:
            return {}
        faulty = set(self.config.faults.sites)
        groups = {"accepted": list(self._told.values())}
        if faulty:
            groups["accepted_honest"] = [w for s, w in self._told.items() if s not in faulty]
            groups["accepted_faulty"] = [w for s, w in self._told.items() if s in faulty]
        return {name: fmean(w > 0 for w in group) for name, group in groups.items() if group}
