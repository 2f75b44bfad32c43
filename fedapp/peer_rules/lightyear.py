"""LIGHTYEAR: accept whoever sees the own records as the own model does, and move towards them."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.config_lightyear import LightyearSection
from fedapp.gates import Decision, Gates, Scores, decide, head_distance, relative_distance
from fedapp.mixing import mix, mixing_weights, step_size
from fedapp.outputs import prediction_agreement, probabilities
from fedapp.peer_rules.agreement import Yardstick
from fedapp.peer_rules.base import Context, Mixed, Neighbour, Verdict, View
from fedapp.peer_rules.nulls import useless
from fedapp.seeds import derive_seed

WHOLE_DISTANCE, LORA_DISTANCE, HEAD_DISTANCE, PREDICTION = 0.9, 3.0, 1.1, 0.2
"""Where each score tells sound models from others, see `fedapp.gates`."""


class Lightyear:
    """``theta_i <- theta_i + gamma^t mean_S (theta_j - theta_i)`` over those that pass every gate.

    References
    ----------
    LIGHTYEAR, arXiv 2608.12108; the gates are explained in `fedapp.gates`.
    """

    def __init__(self, config: RunConfig) -> None:
        self._settings = config.lightyear.effective()

    def mix(self, own: Adapter, neighbours: Sequence[Neighbour], context: Context) -> Mixed:
        """See `fedapp.peer_rules.base.PeerRule`; a neighbour costs one forward pass."""
        if not neighbours:
            return Mixed(own, 1.0, ())
        settings = self._settings
        limits = gates(settings, own)
        view = context.view(own)
        yardstick = Yardstick(view, settings.agreement)
        null = None
        if limits.calibrate:
            seed = derive_seed(context.config.seed, "nulls", context.site, context.round)
            null = yardstick.null_level(map(context.view, useless(own, settings.nulls, seed)))
        decisions = [
            decide(one.name, self._scores(own, view, yardstick, null, one, context), limits)
            for one in neighbours
        ]
        step = step_size(context.round - 1, settings.gamma, settings.floor)
        accepted = [
            one.model
            for one, decision in zip(neighbours, decisions, strict=True)
            if decision.is_accepted
        ]
        model, error = mix(
            own, accepted, step, include_self=settings.self_in_mean, on=settings.mix_on
        )
        own_weight, each = mixing_weights(len(accepted), step, include_self=settings.self_in_mean)
        numbers = {"mixing_step": step, "mixing_error": error}
        return Mixed(
            model,
            own_weight,
            tuple(_verdict(decision, each) for decision in decisions),
            numbers if null is None else {**numbers, "null_agreement": null},
        )

    def _scores(
        self,
        own: Adapter,
        view: View,
        yardstick: Yardstick,
        null: float | None,
        neighbour: Neighbour,
        context: Context,
    ) -> Scores:
        other = context.view(neighbour.model)
        distance = relative_distance(own, neighbour.model)
        return Scores(
            kernel=yardstick.score(other),
            null=null,
            prediction=prediction_agreement(
                probabilities(view.logits_nc), probabilities(other.logits_nc)
            ),
            distance=distance,
            head=head_distance(own, neighbour.model) if own.pairs else distance,
        )


def gates(settings: LightyearSection, own: Adapter) -> Gates:
    """Return the thresholds that the settings mean for what is trained, see `thresholds`."""
    whole = not own.pairs
    return thresholds(settings, whole=whole, with_head=bool(own.pairs and own.tensors))


def thresholds(settings: LightyearSection, *, whole: bool, with_head: bool) -> Gates:
    """Return the thresholds that the settings mean.

    Of a LoRA model the frozen base decides the features: flipped and random adapters agree with
    the own one as honest ones do, and honest ones predict unlike things while they learn
    (`docs/agreement.md`). So by themselves kernel and predictions decide only over models that
    are trained whole, and the head's distance over the others; predictions where there is none.

    Parameters
    ----------
    settings : LightyearSection
        As `LightyearSection.effective` gives them.
    whole : bool
        Whether all parameters are trained.
    with_head : bool
        Whether something is trained whole beside LoRA pairs.
    """
    kind = settings.kernel_gate
    if kind == "auto":
        kind = "calibrated" if whole else "off"
    distance = settings.distance
    if distance < 0:
        distance = WHOLE_DISTANCE if whole else LORA_DISTANCE
    head = settings.head_distance
    if head < 0:
        head = HEAD_DISTANCE if with_head else 0.0
    prediction = settings.prediction
    if prediction < -1:
        prediction = -1.0 if with_head else PREDICTION
    return Gates(
        kernel=None if kind == "off" else settings.kernel,
        calibrate=kind == "calibrated",
        prediction=None if prediction == -1 else prediction,
        distance=distance or None,
        head=head or None,
    )


def _verdict(decision: Decision, weight: float) -> Verdict:
    row = decision.row()
    names = {
        "agreement": "kernel",
        "calibrated": "calibrated",
        "null": "null",
        "prediction": "prediction",
        "distance": "distance",
        "head": "head",
    }
    return Verdict(
        decision.peer,
        decision.is_accepted,
        weight if decision.is_accepted else 0.0,
        decision.refused_by,
        {name: _number(row[key]) for name, key in names.items()},
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
