"""The attacks of `fedapp.attacks` by name: what a site that a run declares faulty sends (pure).

Only such a site calls this, in the place where an honest one sends its model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedapp import attacks
from fedapp.adapter import Adapter
from fedapp.faults import ATTACKS, Attack
from fedapp.seeds import derive_seed


@dataclass(frozen=True)
class Strengths:
    """How strong each attack is; see the function of the same name in `fedapp.attacks`.

    Attributes
    ----------
    std : float
        Of additive noise, in the unit of the weights.
    share : float
        Of multiplicative noise, relative to every weight; and of the numbers that are made NaN.
    factor : float
        Of scaling.
    z : float
        Of ALIE, in standard deviations.
    epsilon : float
        Of IPM.
    delay : int
        Of replay, in rounds.
    """

    std: float
    share: float
    factor: float
    z: float
    epsilon: float
    delay: int


@dataclass(frozen=True, eq=False)
class Situation:
    """What a faulty site has in hand when it sends.

    Attributes
    ----------
    model : Adapter
        As trained, on flipped labels if the attack is ``label-flip``.
    start : Adapter
        What its round began with.
    known : sequence of Adapter
        Models of others that it knows; its own alone if empty.
    sent : sequence of Adapter
        Its trained models of earlier rounds, oldest first.
    head : tuple of str
        Tensors of the last layer, one class a row.
    hidden : HiddenLayer, optional
        A layer whose neurons can be renamed.
    seed, site, round
        From which everything random is drawn.
    """

    model: Adapter
    start: Adapter
    known: Sequence[Adapter]
    sent: Sequence[Adapter]
    head: tuple[str, ...]
    hidden: attacks.HiddenLayer | None
    seed: int
    site: str
    round: int

    @property
    def draw(self) -> int:
        """Seed of this site in this round."""
        return derive_seed(self.seed, "faulty", self.site, self.round)


def _permute_neurons(at: Situation, strengths: Strengths) -> Adapter:
    if at.hidden is None:
        raise ValueError(
            "neuron-permutation needs a hidden layer that is trained whole, and this model has "
            "none; choose another attack"
        )
    return attacks.permute_neurons(at.model, at.hidden, at.draw)


_SENT: dict[Attack, Callable[[Situation, Strengths], Adapter]] = {
    "none": lambda at, by: at.model,
    "additive-noise": lambda at, by: attacks.additive_noise(at.model, by.std, at.draw),
    "multiplicative-noise": lambda at, by: attacks.multiplicative_noise(
        at.model, by.share, at.draw
    ),
    "sign-flip": lambda at, by: attacks.flip_sign(at.model),
    "update-flip": lambda at, by: attacks.scale_update(at.start, at.model, -1.0),
    "random": lambda at, by: attacks.random_weights(at.model, at.draw),
    "head-flip": lambda at, by: attacks.flip_head(at.model, at.head),
    "head-permutation": lambda at, by: attacks.permute_head(at.model, at.head, at.draw),
    "neuron-permutation": _permute_neurons,
    "scaling": lambda at, by: attacks.scale(at.model, by.factor),
    "label-flip": lambda at, by: at.model,
    "alie": lambda at, by: attacks.alie(at.known or [at.model], by.z),
    "ipm": lambda at, by: attacks.ipm(at.known or [at.model], by.epsilon),
    "replay": lambda at, by: attacks.replay([*at.sent, at.model], by.delay),
    "non-finite": lambda at, by: attacks.non_finite(at.model, math.nan, by.share, at.draw),
    "free-rider": lambda at, by: attacks.free_rider(at.start, 0.0, at.draw),
}


def inject(attack: Attack, situation: Situation, strengths: Strengths) -> Adapter:
    """Return what the faulty site sends.

    Raises
    ------
    ValueError
        If the attack is unknown, or the model lacks what it attacks.
    """
    if attack not in _SENT:
        raise ValueError(f"unknown attack {attack!r}; choose one of {', '.join(ATTACKS)}")
    return _SENT[attack](situation, strengths)
