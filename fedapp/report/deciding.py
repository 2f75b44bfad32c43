"""Which score the heat maps show: that of the gates that decide in the run, else the agreement.

A run's gates are on different scales, some from below and some from above. A cell shows the gate
that is nearest to its limit, or farthest beyond it: half a shade is the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedapp.config import RunConfig
from fedapp.errors import FedappError
from fedapp.gates import Gates
from fedapp.gossip.ledger import Heard
from fedapp.peer_rules.lightyear import thresholds
from fedapp.peer_rules.unmixable import UNMIXABLE

AGREEMENT = "agreement"


@dataclass(frozen=True)
class Limit:
    """One gate as the ledger's scores have it.

    Attributes
    ----------
    score : str
        Its name in the ledger.
    words : str
        What the score is.
    limit : float
    least : bool
        Whether the limit is the least score that passes; else the largest.
    bottom : float
        A score this low, or a distance of twice the limit, is drawn faintest.
    """

    score: str
    words: str
    limit: float
    least: bool
    bottom: float = 0.0

    def __str__(self) -> str:
        return f"{self.words} {'at least' if self.least else 'at most'} {self.limit:g}"

    def margin(self, score: float | None) -> float:
        """Return 1/2 on the limit, more for what passes, 0 for what was no number."""
        if score is None:
            return 0.0
        if not self.least:
            return max(0.0, 1 - score / (2 * self.limit))
        passes = score >= self.limit
        span = (1 - self.limit) if passes else (self.limit - self.bottom)
        if span <= 0:
            return 1.0 if passes else 0.0
        return max(0.0, 0.5 + 0.5 * (score - self.limit) / span)


@dataclass(frozen=True)
class Deciding:
    """What a run's heat maps show.

    Attributes
    ----------
    limits : tuple of Limit
        Empty: the agreement itself.
    note : str
        What the agreement decides, where it is shown.
    """

    limits: tuple[Limit, ...] = ()
    note: str = ""

    def title(self, node: str) -> str:
        """What the map of a node is of."""
        if self.limits:
            return f"How the gates of {node} judged its peers over rounds"
        return f"Agreement of {node} with its peers over rounds"

    @property
    def guide(self) -> str:
        """What the shades mean."""
        if not self.limits:
            return f"The darker, the more a peer's model agrees with the own one.{self.note}"
        named = "; ".join(str(limit) for limit in self.limits)
        nearest = "" if len(self.limits) == 1 else " Of several gates the strictest counts."
        return (
            f"In this run these scores decide: {named}. Half a shade is the limit; darker passes, "
            f"fainter is refused.{nearest} What the gates let in, and could not be mixed, is drawn "
            "faintest."
        )

    @property
    def swatches(self) -> tuple[tuple[float, str], ...]:
        """Values and what they mean."""
        if not self.limits:
            return tuple((value, f"agreement {value:g}") for value in (0.0, 0.5, 1.0))
        return ((0.0, "far beyond a limit"), (0.5, "on the limit"), (1.0, "far within"))

    def value(self, heard: Heard) -> float | None:
        """Return what a cell shows, in [0, 1]; None if there is no such score.

        Of gates 0 as well for a model that passed them and spoilt the mix: dark is accepted.
        """
        if self.limits and heard.reason == UNMIXABLE and self.is_scored(heard):
            return 0.0
        margins = [
            limit.margin(heard.scores[limit.score])
            for limit in self.limits
            if limit.score in heard.scores
        ]
        if margins:
            return min(margins)
        return None if self.limits else heard.scores.get(AGREEMENT)

    def is_scored(self, heard: Heard) -> bool:
        """Whether there is a score to show, though it may be no number."""
        wanted = [limit.score for limit in self.limits] or [AGREEMENT]
        return any(score in heard.scores for score in wanted)


def deciding(settings: Mapping[str, Any], heard: Callable[[], Iterable[Heard]]) -> Deciding:
    """Return what a run's heat maps show.

    Parameters
    ----------
    settings : mapping
        The run's, flat; of another version of fedapp the agreement is shown.
    heard : callable
        All rows of its ledgers.
    """
    if settings.get("method") != "lightyear":
        return Deciding()
    try:
        config = RunConfig.from_flat(settings)
    except FedappError:
        return Deciding()
    section = config.lightyear.effective()
    whole = config.model.trainable == "all"
    # The distance of heads is exactly 0 where nothing is trained whole beside the pairs.
    with_head = not whole and any(one.scores.get("head") for one in heard())
    gates = thresholds(section, whole=whole, with_head=with_head)
    limits = tuple(_limits(gates))
    if gates.kernel is not None and not gates.calibrate and len(limits) == 1:
        return Deciding(note=f" It decides in this run: at least {gates.kernel:g} is accepted.")
    if not limits:
        return Deciding(note=" No gate is set: it decides nothing in this run.")
    known = {score for one in heard() for score in one.scores}
    return Deciding(tuple(limit for limit in limits if limit.score in known))


def _limits(gates: Gates) -> Iterable[Limit]:
    if gates.head is not None:
        yield Limit("head", "distance of the heads", gates.head, least=False)
    if gates.distance is not None:
        yield Limit("distance", "distance", gates.distance, least=False)
    if gates.kernel is not None:
        name = "calibrated" if gates.calibrate else AGREEMENT
        words = "calibrated agreement" if gates.calibrate else AGREEMENT
        bottom = 0.0 if gates.kernel > 0 else gates.kernel - 1
        yield Limit(name, words, gates.kernel, least=True, bottom=bottom)
    if gates.prediction is not None:
        yield Limit("prediction", "agreement of predictions", gates.prediction, True, bottom=-1.0)
