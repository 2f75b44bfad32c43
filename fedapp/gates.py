"""Whom a site lets into its mean: four gates and the record of a decision (numpy, pure).

No score sees everything. The kernel (`fedapp.ntk`) sees broken features and no head; the outputs
(`fedapp.outputs`) see broken heads; neither sees permuted neurons, which compute the same function
and destroy a mean of parameters, but are far away. A peer is accepted if it passes every gate that
is set.

The thresholds, measured on small image models with common initial weights: 0.6 for the kernel is
the paper's and fits deep nets, 0.85 shallow ones, 0.4 once calibrated; 0.2 for the outputs; 0.9
for the distance, of which honest peers needed 0.6 at most and permuted ones 1.3 at least. The last
is of models that are trained whole. Of a LoRA model theta is what was learned, from zero: after one
round on embedded:heart honest peers were 1.0 to 2.0 apart, so that 0.9 refuses everybody. Neurons
cannot be permuted there; a limit of about 3 refuses what is scaled. Its head does begin at common
random weights: the distance of the heads alone tells flipped, reversed and random models apart.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from fedapp.adapter import Adapter
from fedapp.lowrank import product_distance, product_norm
from fedapp.ntk import calibrated as calibrate

Gate = Literal["finite", "distance", "head", "kernel", "prediction"]


@dataclass(frozen=True)
class Gates:
    """The thresholds; None leaves a gate open.

    Attributes
    ----------
    kernel : float, optional
        Least agreement, in [0, 1] (or of the calibrated score, which is below 1 without bound).
    calibrate : bool
        Whether that is of `fedapp.ntk.calibrated` scores instead of the agreement itself.
    prediction : float, optional
        Least `fedapp.outputs.prediction_agreement`, in [-1, 1].
    distance : float, optional
        Largest `relative_distance`.
    head : float, optional
        Largest `head_distance`.
    """

    kernel: float | None
    calibrate: bool
    prediction: float | None
    distance: float | None
    head: float | None = None


@dataclass(frozen=True)
class Scores:
    """What was measured of one peer; None where it was not.

    Attributes
    ----------
    kernel : float, optional
        Agreement, in [0, 1].
    null : float, optional
        Null level of the site, see `fedapp.ntk.calibrated`.
    prediction : float, optional
    distance, head : float, optional
        Infinite if the peer's model is not finite.
    """

    kernel: float | None = None
    null: float | None = None
    prediction: float | None = None
    distance: float | None = None
    head: float | None = None


@dataclass(frozen=True)
class Decision:
    """One peer in one round: accepted, or refused by which gates, and every score.

    Attributes
    ----------
    peer : str
    refused_by : tuple of str
        All gates that refuse, not the first alone; empty if the peer is accepted.
    scores : Scores
    calibrated : float, optional
        The agreement above the null level, wherever both were measured.
    """

    peer: str
    refused_by: tuple[Gate, ...]
    scores: Scores
    calibrated: float | None

    @property
    def is_accepted(self) -> bool:
        """Whether no gate refuses the peer."""
        return not self.refused_by

    def row(self) -> dict[str, object]:
        """Return the record as flat JSON; what is infinite or NaN has no number there, but null."""
        numbers = {**asdict(self.scores), "calibrated": self.calibrated}
        finite = {
            name: value if value is not None and math.isfinite(value) else None
            for name, value in numbers.items()
        }
        return {
            "peer": self.peer,
            "accepted": self.is_accepted,
            "refused_by": list(self.refused_by),
            **finite,
        }


def decide(peer: str, scores: Scores, gates: Gates, *, is_finite: bool = True) -> Decision:
    """Return the decision on a peer; a score on the threshold passes.

    Parameters
    ----------
    peer : str
    scores : Scores
        Each that a gate needs. A score that is NaN does not pass.
    gates : Gates
    is_finite : bool
        A model with NaN or Inf is refused by ``finite``, whatever the gates; nothing needs to be
        measured of it.

    Raises
    ------
    ValueError
        If a gate is set and its score is missing.
    """
    score = scores.kernel
    above = None
    if score is not None and scores.null is not None:
        above = calibrate(score, scores.null)
    if not is_finite:
        return Decision(peer, ("finite",), scores, above)
    kernel = above if gates.calibrate else score
    checks: list[tuple[Gate, float | None, float | None, int]] = [
        ("distance", gates.distance, scores.distance, -1),
        ("head", gates.head, scores.head, -1),
        ("kernel", gates.kernel, kernel, 1),
        ("prediction", gates.prediction, scores.prediction, 1),
    ]
    refused: list[Gate] = []
    for gate, threshold, value, sign in checks:
        if threshold is None:
            continue
        if value is None:
            raise ValueError(f"peer {peer}: the {gate} gate is set, but its score is missing")
        if not sign * value >= sign * threshold:
            refused.append(gate)
    return Decision(peer, tuple(refused), scores, above)


def relative_distance(own: Adapter, peer: Adapter) -> float:
    """Return ``||theta_j - theta_i|| / ||theta_i||`` over all that is trained.

    Of a LoRA pair theta is the product ``s B A``, taken by r x r matrices: the same model written
    with other factors is at distance 0. It presumes that all sites began with the same weights.

    Returns
    -------
    float
        Infinite if the peer's model is not finite, or differs where the own one is zero.

    Raises
    ------
    ValueError
        If the two have other names or shapes; a rank may differ.
    """
    if own.pairs.keys() != peer.pairs.keys() or own.tensors.keys() != peer.tensors.keys():
        raise ValueError("the peer's model has other names than the own one; refuse it before")
    if not peer.is_finite():
        return math.inf
    apart = whole = 0.0
    for name, pair in own.pairs.items():
        other = peer.pairs[name]
        own_mr = pair.b_mr.astype(np.float64) * pair.scaling
        other_mr = other.b_mr.astype(np.float64) * other.scaling
        apart += product_distance(own_mr, pair.a_rn, other_mr, other.a_rn) ** 2
        whole += product_norm(own_mr, pair.a_rn) ** 2
    for name, tensor in own.tensors.items():
        if tensor.shape != peer.tensors[name].shape:
            raise ValueError(
                f"{name}: expected shape {tensor.shape}, got {peer.tensors[name].shape}; refuse "
                "the peer before"
            )
        own_array, other_array = (x.astype(np.float64) for x in (tensor, peer.tensors[name]))
        apart += float(np.sum(np.square(other_array - own_array)))
        whole += float(np.sum(np.square(own_array)))
    if apart == 0:
        return 0.0
    return math.sqrt(apart) / math.sqrt(whole) if whole else math.inf


def head_distance(own: Adapter, peer: Adapter) -> float:
    """Return `relative_distance` over what is trained whole: beside LoRA pairs the head.

    It is 0 if nothing is.
    """
    return relative_distance(Adapter({}, own.tensors), Adapter({}, peer.tensors))
