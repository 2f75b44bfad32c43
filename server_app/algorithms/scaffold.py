"""Server half of `scaffold`: the control variate that all sites share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.state import State
from fedapp.variates import RANKS, add, in_factors_of, lift, zeros
from server_app.algorithms.base import Round, ServerAlgorithm
from server_app.log import names, warn
from server_app.updates import Update

DOWN, UP = "variate", "variate_change"
"""Payloads: c in the factors that a site receives, and ``c_i' - c_i`` in the same ones."""
ROUND, CONTINUE = "scaffold_round", "scaffold_continue"
"""Settings: the round, and the round whose variate of this site is in c (0: none)."""
CONTINUED = "variate_round"
"""Number that a site reports: the round whose variate it continued from (0: from zero)."""


class Scaffold(ServerAlgorithm):
    """``c <- c + sum_{i in S} p_i (c_i' - c_i)``: c stays ``sum_i p_i c_i`` over all N sites.

    ``p_i`` is the site's share of the training examples of *all* sites, as in the merge; with
    sites of one size this is the paper's ``c + |S|/N mean_S(c_i' - c_i)``. The model's own step
    is the method's merge (global step size 1).

    Where the method gives the pairs other factors every round, c is kept as a lift
    (`fedapp.variates`), to which every site's change is added in the factors that it received.

    The coordinator tells a site the round whose variate of its own is in c. A site whose reply was
    lost goes back to it; one that has lost it begins at zero and says so, and then every site
    does, since nobody knows what is to be taken out of c.

    References
    ----------
    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    arXiv 1910.06378, algorithm 1, lines 10 to 17.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._lifted: Adapter | None = None
        self._error = 0.0
        self._merged: dict[str, int] = {}  # site -> round whose variate is in c
        self._shown: tuple[Adapter, Adapter | None, Adapter] | None = None

    def payloads(self, round: Round, site: str) -> dict[str, Adapter]:
        """Return c in the factors that the site receives."""
        model = round.sent(site)
        if self._shown is None or self._shown[0] is not model or self._shown[1] is not self._lifted:
            variate = zeros(model, round.contributes)
            if self._lifted is not None:
                variate = in_factors_of(self._lifted, model)
            self._shown = (model, self._lifted, variate)
        return {DOWN: self._shown[2]}

    def settings(self, round: Round, site: str) -> dict[str, Scalar]:
        """Return the round, and where the site is to continue."""
        return {ROUND: round.number, CONTINUE: self._merged.get(site, 0)}

    def expected(self, round: Round, site: str) -> dict[str, Adapter]:
        """Return the layout of c."""
        return {UP: zeros(round.sent(site), round.contributes)}

    def absorb(
        self, round: Round, updates: Sequence[Update], previous: Adapter, model: Adapter
    ) -> None:
        """Add what the sites' variates changed by."""
        lost = [
            update.site
            for update in updates
            if update.numbers.get(CONTINUED, -1.0) != self._merged.get(update.site, 0)
        ]
        if lost:
            warn(
                f"round {round.number}: {names(lost)} did not continue from the control variate "
                "that is part of the shared one; all variates begin anew at zero"
            )
            self._lifted, self._merged, self._error = None, {}, 0.0
            return
        changes = [(u.weight / round.examples, self._change(round, u)) for u in updates]
        cap = self.config.scaffold.rank_cap or RANKS * self.config.lora.rank
        self._lifted, self._error = add(self._lifted, changes, cap)
        self._merged = {**self._merged, **{u.site: round.number for u in updates}}

    def _change(self, round: Round, update: Update) -> Adapter:
        change = update.payload(UP)
        return lift(change, round.sent(update.site)) if round.moves_basis else change

    def numbers(self) -> dict[str, float]:
        """``variate_error``: what the rank cap took from c this round, as a share of its norm."""
        return {"variate_error": self._error}

    def state_dict(self) -> State:
        """c, and which variate of each site is in it."""
        state: State = {"merged": self._merged}
        return state if self._lifted is None else {**state, "lifted": self._lifted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self._lifted = state.get("lifted")
        self._merged = {site: int(round) for site, round in state.get("merged", {}).items()}
