"""Server half of `fednova`: normalise what each site did by how much it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedapp.adapter import Adapter
from fedapp.errors import UpdateRefused
from fedapp.validation import first_too_large
from server_app.algorithms.base import Round, ServerAlgorithm
from server_app.updates import Update

ACCUMULATION = "accumulation"
"""Name of the number ``||a_i||_1`` that a site reports, see ``client_app.algorithms.fednova``."""


@dataclass
class ScaledUpdate(Update):
    """An update whose work, what it adds to what the site received, counts ``factor`` times."""

    start: Adapter = field(kw_only=True, repr=False)
    factor: float = field(kw_only=True)

    @property
    def adapter(self) -> Adapter:
        """The scaled update in fp32, computed at every access so that none has to be kept."""
        before = dict(self.start.arrays())
        factor = np.float32(self.factor)
        return super().adapter.map(
            # What was not trained stays as it is, bit for bit.
            lambda name, array: before[name] + factor * (array - before[name])
        )


class FedNova(ServerAlgorithm):
    """``x <- x - tau_eff sum_i p_i d_i``, ``d_i = (x - y_i) / a_i``, ``tau_eff = sum_i p_i a_i``.

    ``a_i`` is how much of one unit of gradient, given at every local step, is in ``x - y_i``, in
    steps of the peak learning rate: tau_i for plain SGD, more with momentum. Sites that take more
    steps then pull the model no further than their share ``p_i`` of the examples, so that its
    fixed point is that of ``sum_i p_i F_i``.

    Each update is rewritten as ``x + (tau_eff / a_i) (y_i - x)`` before the method's merge: where
    that is an average, the result is the formula above, and a merge of products sums the
    normalised products.

    References
    ----------
    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization, arXiv 2007.07481, eqs. 7 and 14.
    """

    _numbers: Mapping[str, float] = {}

    def adjust(self, round: Round, updates: Sequence[Update]) -> Sequence[Update]:
        """Return the updates with their work scaled by ``tau_eff / a_i``.

        Raises
        ------
        UpdateRefused
            If a site does not report its ``a_i``, or the scaled update would be absurd.
        """
        accumulations = {update.site: _accumulation(update, round.number) for update in updates}
        total = sum(update.weight for update in updates)
        effective = sum(u.weight / total * accumulations[u.site] for u in updates)
        self._numbers = {"effective_steps": effective}
        return [
            _scaled(update, round, effective / accumulations[update.site]) for update in updates
        ]

    def numbers(self) -> dict[str, float]:
        """``effective_steps``, that is ``tau_eff``."""
        return dict(self._numbers)


def _accumulation(update: Update, round: int) -> float:
    value = update.numbers.get(ACCUMULATION, math.nan)
    if not (math.isfinite(value) and value > 0):
        raise UpdateRefused(
            f"fednova needs the number '{ACCUMULATION}', positive and finite, got {value!r:.40}; "
            "let every site run with federation.algorithm = fednova",
            reason="bad-metrics",
            site=update.site,
            round=round,
        )
    return value


def _scaled(update: Update, round: Round, factor: float) -> Update:
    scaled = ScaledUpdate(**vars(update), start=round.sent(update.site), factor=factor)
    finding = first_too_large(scaled.adapter)
    if finding is not None:
        raise UpdateRefused(
            f"normalised by '{ACCUMULATION}' = {update.numbers[ACCUMULATION]:.4g}, {finding}",
            reason="too-large",
            site=update.site,
            round=round.number,
        )
    return scaled
