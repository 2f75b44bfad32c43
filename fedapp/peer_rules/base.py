"""The form of a peer rule: own model and neighbours' in, mixed model and verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.ntk import Matrix


@dataclass(frozen=True, eq=False)
class View:
    """What one model makes of the site's own validation records: one forward pass.

    Rows are records, or positions of them where the task answers for tokens or pixels; of every
    model that a site looks at in a round they are the same, in one order.

    Attributes
    ----------
    features_nd : ndarray, shape (n, D)
        What goes into the last layer.
    logits_nc : ndarray, shape (n, C)
        What comes out.
    labels_n : ndarray of int, shape (n,)
    has_bias : bool
        Whether the last layer has a bias.
    """

    features_nd: Matrix
    logits_nc: Matrix
    labels_n: NDArray[np.int64]
    has_bias: bool = True


@dataclass(frozen=True, eq=False)
class Neighbour:
    """A neighbour's model of this round: verified as its own, finite, and of the own layout."""

    name: str
    model: Adapter


@dataclass(frozen=True, eq=False)
class Context:
    """What a rule may know besides the models.

    Attributes
    ----------
    config : RunConfig
    site : str
    round : int
        From 1.
    view : callable
        Runs a model over the site's own validation records: costs a forward pass, and no more than
        that. Nothing is remembered.
    loss : callable
        Returns a model's loss on them; it may be NaN. Costs a forward pass.
    degrees : mapping of str to int
        How many neighbours each site has that could be heard, the own one included.
    """

    config: RunConfig
    site: str
    round: int
    view: Callable[[Adapter], View]
    loss: Callable[[Adapter], float]
    degrees: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What became of a neighbour's model; a row of the ledger.

    Attributes
    ----------
    peer : str
    accepted : bool
    weight : float
        Its share of the mix, in [0, 1]; 0 if it was refused.
    refused_by : tuple of str
        What refused it, in one word each, such as the gates' names; empty if it was accepted.
    scores : mapping of str to float or None
        By name; what the report's heat map shows of them: `fedapp.report.deciding`.
    """

    peer: str
    accepted: bool
    weight: float = 0.0
    refused_by: tuple[str, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Mixed:
    """What came of a round.

    Attributes
    ----------
    model : Adapter
        Of the own layout; the own object itself where nobody is accepted.
    own_weight : float
        Share of the own model, in [0, 1].
    verdicts : tuple of Verdict
        One for every neighbour, in their order.
    numbers : mapping of str to float
        What else to report of the round.
    """

    model: Adapter
    own_weight: float
    verdicts: tuple[Verdict, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)


class PeerRule(Protocol):
    """A rule; made anew for every round from the run's settings, so that it remembers nothing."""

    def __init__(self, config: RunConfig) -> None: ...

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """Return the site's next model.

        Parameters
        ----------
        own : Adapter
            As just trained.
        neighbours : sequence of Neighbour
            Sorted by name; may be empty.
        context : Context
        """
