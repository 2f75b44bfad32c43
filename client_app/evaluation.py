"""Measure the resident model on a split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from client_app.batching import ordered_batches
from client_app.fast_linear import fast_linear
from client_app.runtime import autocast
from client_app.tasks.base import GeneratingTask
from fedapp.config import RunConfig
from fedapp.errors import TrainingError

if TYPE_CHECKING:
    from client_app.activations import Watch
    from client_app.models import ResidentModel


def evaluate(
    resident: ResidentModel,
    items: Sequence[Mapping[str, Any]],
    config: RunConfig,
    device: torch.device,
    watch: Watch | None = None,
) -> dict[str, float]:
    """Return the task's metrics on prepared items.

    Parameters
    ----------
    resident : ResidentModel
        Its ``model`` and ``task`` are used; the model's training mode is restored.
    items : sequence of mapping
        What ``task.prepare`` returned for the split.
    config : RunConfig
        ``train.eval_batch_size``, ``train.precision``, and what is to be generated.
    device : torch.device
    watch : Watch, optional
        Entered around every batch's forward pass, not around what is generated.

    Returns
    -------
    dict of str to float
        ``examples`` and the metrics of `fedapp.tasks.TASKS`; an undefined one is left out.

    Raises
    ------
    TrainingError
        If the loss is not finite.
    """
    model, task = resident.model, resident.task
    scores = task.scores(device)
    was_training = model.training
    model.eval()
    try:
        with (
            torch.inference_mode(),
            autocast(config.train, device),
            fast_linear(model, device),
        ):
            for indices in ordered_batches(items, config.train.eval_batch_size):
                batch = task.collate([items[i] for i in indices])
                batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
                with watch(batch) if watch else nullcontext():
                    output = task.output(model, batch)
                scores.update(output, batch)
            generated = (
                task.generated(model, items, config.train, device)
                if isinstance(task, GeneratingTask)
                else {}
            )
    finally:
        model.train(was_training)
    metrics: dict[str, float] = {**scores.compute(), **generated}
    if not math.isfinite(metrics.get("loss", 0.0)):
        raise TrainingError(
            f"the loss on {len(items)} evaluation records is not finite (got {metrics['loss']}); "
            "lower train.learning-rate or use train.precision fp32"
        )
    return metrics
