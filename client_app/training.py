"""The one local training loop; a method plugs into it through the hooks of a `LocalRule`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from client_app.batching import batches
from client_app.methods.base import LocalRule
from client_app.optimizers import (
    build_optimizer,
    learning_rate,
    planned_steps,
    set_learning_rate,
)
from client_app.runtime import autocast, seeded, training_mode
from fedapp.config import RunConfig
from fedapp.errors import TrainingError
from fedapp.seeds import derive_seed

if TYPE_CHECKING:
    from client_app.models import ResidentModel

Items = Sequence[Mapping[str, Any]]
Report = Callable[[int, int, float], None]  # step (from 1), steps, loss

# Reading a loss makes a GPU wait for the CPU; it is also soon enough to notice a NaN.
CUDA_READ_INTERVAL = 10


@dataclass(frozen=True)
class TrainResult:
    """Outcome of `train`: mean training loss over the steps, number of steps, wall time in s."""

    loss: float
    steps: int
    seconds: float

    def numbers(self) -> dict[str, float]:
        """Return what a site reports of it."""
        return {
            "train_loss": self.loss,
            "steps": float(self.steps),
            "training_seconds": self.seconds,
        }


def train(
    resident: ResidentModel,
    items: Items,
    rule: LocalRule,
    config: RunConfig,
    *,
    seed: int,
    first_step: int,
    total_steps: int,
    epochs: int,
    report: Report | None = None,
) -> TrainResult:
    """Train the resident model's adapter in place.

    The result depends on the loaded adapter, the items, the settings, ``seed`` and the number of
    CPU threads, not on what the process did before.

    Parameters
    ----------
    resident : ResidentModel
        Already loaded with what was received.
    items : sequence of mapping
        The task's prepared training items.
    rule : LocalRule
        Its ``begin`` has been called.
    seed : int
        Of shuffling and dropout.
    first_step, total_steps : int
        Place of this training in the whole run, for the schedule, in optimiser steps.
    epochs : int
        Passes over the items; ``train.max_steps`` may end them earlier, see `planned_steps`.
    report : callable, optional
        Called with step (from 1), steps and the step's loss, on a GPU not at every step.

    Raises
    ------
    TrainingError
        If a loss is NaN or infinite. The model stays usable; its adapter is to be loaded again.
    """
    started = time.perf_counter()
    steps = planned_steps(config.train, len(items), epochs)
    losses = _Losses(steps, resident.device, report)
    cast = autocast(config.train, resident.device)
    named = resident.parameters.named_arrays()
    trained = [parameter for name, parameter in named if rule.trainable(name)]
    groups = _groups(items, config, seed, epochs)
    with (
        training_mode(resident, rule, config),
        seeded(derive_seed(seed, "dropout"), resident.device),
    ):
        optimizer = build_optimizer(trained, rule.optimizer_settings())
        for step, group in zip(range(steps), groups, strict=False):
            rate = learning_rate(first_step + step, total_steps, config.train)
            set_learning_rate(optimizer, rate)
            loss = rule.gradients(partial(_backward, resident, items, group, cast))
            rule.transform_gradients()
            if config.train.clip_norm:
                nn.utils.clip_grad_norm_(trained, config.train.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            rule.after_step(rate)
            losses.record(step, loss)
    return TrainResult(losses.mean(), steps, time.perf_counter() - started)


def _groups(items: Items, config: RunConfig, seed: int, epochs: int) -> Iterator[list[list[int]]]:
    """Yield the batches (lists of item numbers) of each optimiser step, epoch after epoch."""
    train, width = config.train, config.train.gradient_accumulation
    for epoch in range(epochs):
        epoch_batches = batches(
            items, train.batch_size, derive_seed(seed, "epoch", epoch), train.length_grouping
        )
        for start in range(0, len(epoch_batches), width):
            yield epoch_batches[start : start + width]


def _backward(
    resident: ResidentModel, items: Items, group: list[list[int]], cast: torch.autocast
) -> Tensor:
    """Accumulate the gradient of the mean loss over ``group``; returns that loss.

    The mean is over all terms of its batches: records, unless the items say otherwise.
    """
    total = torch.zeros((), device=resident.device)
    terms = [sum(items[index].get("terms", 1) for index in batch_items) for batch_items in group]
    for batch_items, share in zip(group, terms, strict=True):
        batch = resident.task.collate([items[index] for index in batch_items])
        batch = {key: value.to(resident.device) for key, value in batch.items()}
        with cast:
            loss = resident.task.loss(resident.model, batch)
        loss = loss * (share / sum(terms))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


class _Losses:
    """Collects the loss of every step and stops at the first one that is not finite."""

    def __init__(self, steps: int, device: torch.device, report: Report | None) -> None:
        self._values = torch.zeros(steps, device=device)
        self._interval = CUDA_READ_INTERVAL if device.type == "cuda" else 1
        self._report, self._checked = report, 0

    def record(self, step: int, loss: Tensor) -> None:
        self._values[step] = loss
        steps = len(self._values)
        if (step + 1) % self._interval and step + 1 < steps:
            return
        for index, value in enumerate(self._values[self._checked : step + 1].tolist()):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss became {'NaN' if math.isnan(value) else 'infinite'} at step "
                    f"{self._checked + index + 1} of {steps}; lower train.learning-rate, "
                    "or set train.clip-norm if it is 0"
                )
        self._checked = step + 1
        if self._report is not None:
            self._report(step + 1, steps, value)

    def mean(self) -> float:
        """Mean over the steps, in fp64; NaN without a step."""
        return float(self._values.double().mean())
