"""Tasks: how records become batches, a loss and metrics."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedapp.config import RunConfig
from fedapp.tasks import task_info

if TYPE_CHECKING:
    from client_app.sources import ModelSource
    from client_app.tasks.base import Task

TASKS: dict[str, str] = {
    "sequence-classification": "client_app.tasks.sequence_classification:SequenceClassification",
    "causal-lm": "client_app.tasks.causal_lm:CausalLM",
    "multiple-choice": "client_app.tasks.multiple_choice:multiple_choice",
    "image-classification": "client_app.tasks.image_classification:ImageClassification",
    "image-segmentation": "client_app.tasks.image_segmentation:ImageSegmentation",
}


def build_task(config: RunConfig, label_map: Sequence[str], source: ModelSource) -> Task:
    """Build the task named in ``model.task`` for a base model, with its tokenizer if it has one.

    Parameters
    ----------
    config : RunConfig
    label_map : sequence of str
    source : ModelSource
        Its ``path`` holds the tokenizer, or what a network for images is made of.

    Raises
    ------
    ConfigError
        If the folder has no tokenizer, or is for another task.
    """
    from client_app.tasks.tokenizer import load_tokenizer

    module, _, name = TASKS[config.model.task].partition(":")
    kind = getattr(importlib.import_module(module), name)
    if task_info(config).on_images:
        seeing: Task = kind(config, list(label_map), source)
        return seeing
    given = [config, list(label_map), load_tokenizer(source)]
    # A class is the task; a function chooses the class by the base model.
    task: Task = kind(*given) if isinstance(kind, type) else kind(*given, source)
    return task
