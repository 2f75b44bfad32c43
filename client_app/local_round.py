"""What a site trains in a round: what it contributes, and a model of its own if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_app.methods.base import LocalRule
from client_app.optimizers import planned_steps
from client_app.training import Items, Report, TrainResult, train
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.errors import TrainingError
from fedapp.registry import METHODS, load_half
from fedapp.seeds import derive_seed

if TYPE_CHECKING:
    from client_app.models import ResidentModel


@dataclass(frozen=True)
class Trained:
    """What a round of training left; the parameters hold the personal model.

    Attributes
    ----------
    payloads : dict of str to Adapter
        What the rule wants to send.
    numbers : dict of str to float
        What is to be reported beside the metrics.
    """

    payloads: dict[str, Adapter]
    numbers: dict[str, float]


def train_round(
    resident: ResidentModel,
    items: Items,
    rule: LocalRule,
    config: RunConfig,
    received: Mapping[str, Adapter],
    settings: Mapping[str, Scalar],
    *,
    site: str,
    round: int,
    report: Report | None = None,
) -> Trained:
    """Train by the rule, read what it contributes, and train the site's own model if it has one.

    Parameters
    ----------
    resident : ResidentModel
        Already loaded with what ``rule.start`` returned.
    items : sequence of mapping
    rule : LocalRule
    config : RunConfig
    received, settings : mapping
        What the coordinator sent.
    site, round
        For the seed and the place in the schedule.
    report : callable, optional
        See `client_app.training.train`; two trainings count as one of twice the steps.

    Raises
    ------
    TrainingError
        If a loss, or what is to be sent, is not finite.
    """
    steps = planned_steps(config.train, len(items), config.train.local_epochs)
    own = rule.apart()

    def fit(which: LocalRule, purpose: str, before: int) -> TrainResult:
        which.begin(received, settings, steps)
        return train(
            resident,
            items,
            which,
            config,
            seed=derive_seed(config.seed, purpose, site, round),
            first_step=max(0, round - 1) * steps,
            total_steps=config.federation.rounds * steps,
            epochs=config.train.local_epochs,
            report=report and _part(report, before, 1 if own is None else 2),
        )

    result = fit(rule, "train", 0)
    payloads = rule.finish(received)
    for name, adapter in payloads.items():
        if not adapter.is_finite():
            raise TrainingError(
                f"after training, '{name}' holds NaN or Inf; lower train.learning-rate"
            )
    numbers = {**rule.numbers(), **result.numbers()}
    if own is not None:
        resident.parameters.load(own.start(received))
        second = fit(own, "train own", steps)
        numbers |= {**own.numbers(), "own_train_loss": second.loss, "own_steps": second.steps}
        numbers["training_seconds"] += second.seconds
    return Trained(payloads, numbers)


def round_steps(config: RunConfig, records: int) -> int:
    """Return the optimiser steps of a round's `train_round`, those of an own model included."""
    rule: type[LocalRule] = load_half(METHODS[config.method].client)
    trainings = 1 if rule.apart is LocalRule.apart else 2
    return trainings * planned_steps(config.train, records, config.train.local_epochs)


def _part(report: Report, before: int, trainings: int) -> Report:
    return lambda step, steps, loss: report(before + step, trainings * steps, loss)
