"""Tasks: how records become batches, a loss and metrics."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedapp.config import RunConfig

if TYPE_CHECKING:
    from client_app.sources import ModelSource
    from client_app.tasks.base import Task

TASKS: dict[str, str] = {
    "sequence-classification": "client_app.tasks.sequence_classification:SequenceClassification",
    "causal-lm": "client_app.tasks.causal_lm:CausalLM",
    "multiple-choice": "client_app.tasks.multiple_choice:multiple_choice",
}


def build_task(config: RunConfig, label_map: Sequence[str], source: ModelSource) -> Task:
    """Build the task named in ``model.task`` with the tokenizer of the base model.

    Parameters
    ----------
    config : RunConfig
    label_map : sequence of str
    source : ModelSource
        Its ``path`` holds the tokenizer.

    Raises
    ------
    ConfigError
        If the folder has no tokenizer.
    """
    from client_app.tasks.tokenizer import load_tokenizer

    module, _, name = TASKS[config.model.task].partition(":")
    kind = getattr(importlib.import_module(module), name)
    given = [config, list(label_map), load_tokenizer(source)]
    # A class is the task; a function chooses the class by the base model.
    task: Task = kind(*given) if isinstance(kind, type) else kind(*given, source)
    return task
