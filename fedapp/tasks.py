"""What a task's metrics are called, which way is better, and by which one sites are compared.

The one place for it: summary, report, model card, progress lines and the check of what a site
reports all ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedapp.config import RunConfig


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    title : str
        Short, for the head of a narrow column.
    name : str
        In words, for a sentence.
    higher_is_better : bool
    is_share : bool
        Whether it lies between 0 and 1.
    is_proportion : bool
        Whether it is the share of the examples that are right, so that it has an interval.
    generated : bool
        Whether it is only measured where the model writes, with ``train.generate-tokens``.
    least : float or None
        Smallest value it can have, if it is no share.
    """

    title: str
    name: str
    higher_is_better: bool = True
    is_share: bool = True
    is_proportion: bool = False
    generated: bool = False
    least: float | None = None


@dataclass(frozen=True)
class TaskInfo:
    """One value of ``model.task``, as both sides of the wire know it.

    Attributes
    ----------
    metrics : mapping of str to Metric
        All of them, in order.
    headlines : tuple of str
        The metric by which models and sites are compared; a later one where an earlier one is not
        measured. Each is a share, and more is better.
    shown : tuple of str
        Those in tables, behind the headline.
    followed : tuple of str
        Those whose mean over the sites is recorded every round.
    loaders : mapping of str to str
        What ``task_type`` of the adapter may be, and the class of transformers that then loads the
        base model for it; none where the base model is a network for images.
    counts : tuple of str
        Further counts of records or tokens that an evaluation may report.
    """

    metrics: Mapping[str, Metric]
    headlines: tuple[str, ...]
    shown: tuple[str, ...]
    followed: tuple[str, ...]
    loaders: Mapping[str, str]
    counts: tuple[str, ...] = ()

    @property
    def on_images(self) -> bool:
        """Whether the records are images and the base model one of fedapp's own networks."""
        return not self.loaders

    @property
    def reported(self) -> tuple[str, ...]:
        """Every number that an evaluation may report."""
        return (*self.metrics, "examples", *self.counts)

    def headline(self, generate_tokens: int) -> str:
        """Return the metric by which a run's models and sites are compared."""
        return next(name for name in self.headlines if self._measured(name, generate_tokens))

    def columns(self, generate_tokens: int) -> tuple[str, ...]:
        """Return the metrics of a run's tables, the headline first."""
        first = self.headline(generate_tokens)
        rest = [name for name in self.shown if self._measured(name, generate_tokens)]
        return (first, *(name for name in rest if name != first))

    def loader(self, peft_config: Mapping[str, Any]) -> str:
        """Return the class of transformers that loads the base model of an adapter."""
        kind = str(peft_config.get("task_type"))
        return self.loaders.get(kind, next(iter(self.loaders.values())))

    def _measured(self, name: str, generate_tokens: int) -> bool:
        return generate_tokens > 0 or not self.metrics[name].generated


NARROW = 3
"""Most metrics of a model in a narrow table."""

_ACCURACY = Metric("acc", "accuracy", is_proportion=True)
_LOSS = Metric("loss", "loss", higher_is_better=False, is_share=False)
_OF_LABELS = {
    "accuracy": _ACCURACY,
    "loss": _LOSS,
    "auc": Metric("AUC", "AUC"),
    "f1": Metric("F1", "F1"),
}

TASKS: dict[str, TaskInfo] = {
    "sequence-classification": TaskInfo(
        metrics=_OF_LABELS,
        headlines=("accuracy",),
        shown=("accuracy", "auc", "f1"),
        followed=("accuracy", "loss"),
        loaders={"SEQ_CLS": "AutoModelForSequenceClassification"},
    ),
    "causal-lm": TaskInfo(
        metrics={
            "loss": _LOSS,
            "perplexity": Metric(
                "ppl", "perplexity", higher_is_better=False, is_share=False, least=1.0
            ),
            "token_accuracy": Metric("tokens", "token accuracy"),
            "exact_match": Metric("exact", "exact match", is_proportion=True, generated=True),
            "rouge_l": Metric("ROUGE-L", "ROUGE-L", generated=True),
        },
        headlines=("rouge_l", "token_accuracy"),
        shown=("rouge_l", "exact_match", "loss", "token_accuracy", "perplexity"),
        followed=("rouge_l", "token_accuracy", "exact_match", "loss"),
        loaders={"CAUSAL_LM": "AutoModelForCausalLM"},
        counts=("response_tokens", "generated", "cut_prompts"),
    ),
    "multiple-choice": TaskInfo(
        metrics={"accuracy": _ACCURACY, "loss": _LOSS},
        headlines=("accuracy",),
        shown=("accuracy", "loss"),
        followed=("accuracy", "loss"),
        loaders={"SEQ_CLS": "AutoModelForMultipleChoice", "CAUSAL_LM": "AutoModelForCausalLM"},
    ),
    "image-classification": TaskInfo(
        metrics=_OF_LABELS,
        headlines=("accuracy",),
        shown=("accuracy", "auc", "f1"),
        followed=("accuracy", "loss"),
        loaders={},
    ),
    "image-segmentation": TaskInfo(
        metrics={
            "dice": Metric("Dice", "Dice"),
            "iou": Metric("IoU", "IoU"),
            "pixel_accuracy": Metric("pixels", "pixel accuracy"),
            "loss": _LOSS,
        },
        headlines=("dice",),
        shown=("dice", "iou", "pixel_accuracy"),
        followed=("dice", "loss"),
        loaders={},
    ),
}

FOLLOWED = tuple(dict.fromkeys(name for info in TASKS.values() for name in info.followed))
"""The metrics whose mean over the sites is recorded every round, of all tasks."""
HEADLINES = {name: info.metrics[name].name for info in TASKS.values() for name in info.headlines}
"""The metrics that a line on a round may name, of all tasks, and how."""


def task_info(config: RunConfig) -> TaskInfo:
    """Return what is known of the run's task."""
    return TASKS[config.model.task]


def headline(config: RunConfig) -> str:
    """Return the metric by which the run's models and sites are compared."""
    return task_info(config).headline(config.train.generate_tokens)


def columns(config: RunConfig) -> tuple[str, ...]:
    """Return the metrics of the run's tables, the headline first."""
    return task_info(config).columns(config.train.generate_tokens)


def title(name: str) -> str:
    """Return a metric's name in words as a heading."""
    words = next((info.metrics[name].name for info in TASKS.values() if name in info.metrics), name)
    return words[:1].upper() + words[1:]
