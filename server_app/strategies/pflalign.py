"""pFLAlign: the coordinator averages; what is personal is the sites' own affair."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedapp.adapter import Adapter
from server_app.log import log
from server_app.strategies.fedavg import FedAvg
from server_app.updates import Update

TOLD = ("factor_mean", "alpha_mean", "gate_mean", "delta_withdrawn", "delta_norm")
"""What sites report of their two halves, see ``client_app.methods.pflalign``."""


class PflAlign(FedAvg):
    """``theta_g = sum_k p_k theta_k`` of whole models, the offsets in them included.

    References
    ----------
    pFLAlign, arXiv 2605.02143.
    """

    def diagnostics(
        self, round: int, sent: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Add the means of what the sites report, each counting the same."""
        told = {name: [u.numbers[name] for u in updates if name in u.numbers] for name in TOLD}
        means = {name: fmean(values) for name, values in told.items() if values}
        return {**super().diagnostics(round, sent, updates, merged), **means}

    def summary(self) -> None:
        """Log the settings, and the trap in the learning rate."""
        super().summary()
        if self.config.pflalign.base == "sgd" and self.config.pflalign.local_update:
            log(
                "  steps of plain SGD times a factor, mostly 0.05 to 0.15: train.learning-rate "
                "wants to be about ten times that of SGD"
            )
