"""What a task's metrics are called, which way is better, and by which one sites are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.config import RunConfig


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    title : str
        Short, for the head of a column.
    higher_is_better : bool
    is_share : bool
        Whether it lies between 0 and 1.
    """

    title: str
    higher_is_better: bool = True
    is_share: bool = True


@dataclass(frozen=True)
class TaskInfo:
    """One value of ``model.task``, as both sides of the wire know it.

    Attributes
    ----------
    metrics : mapping of str to Metric
        In the order of tables.
    headlines : tuple of str
        The metric by which models and sites are compared; a later one where an earlier one is not
        measured.
    peft_types : tuple of str
        What ``task_type`` of the adapter may be.
    loader : str
        The class of transformers that loads the base model for the adapter.
    counts : tuple of str
        Further counts of records or tokens that an evaluation may report.
    """

    metrics: Mapping[str, Metric]
    headlines: tuple[str, ...]
    peft_types: tuple[str, ...]
    loader: str
    counts: tuple[str, ...] = ()


_LOSS = Metric("loss", higher_is_better=False, is_share=False)

TASKS: dict[str, TaskInfo] = {
    "sequence-classification": TaskInfo(
        {
            "accuracy": Metric("acc"),
            "loss": _LOSS,
            "auc": Metric("AUC"),
            "f1": Metric("F1"),
        },
        ("accuracy",),
        ("SEQ_CLS",),
        "AutoModelForSequenceClassification",
    ),
    "causal-lm": TaskInfo(
        {
            "loss": _LOSS,
            "perplexity": Metric("ppl", higher_is_better=False, is_share=False),
            "token_accuracy": Metric("token acc"),
            "exact_match": Metric("exact"),
            "rouge_l": Metric("ROUGE-L"),
        },
        ("rouge_l", "token_accuracy"),
        ("CAUSAL_LM",),
        "AutoModelForCausalLM",
        ("response_tokens", "generated", "cut_prompts"),
    ),
    "multiple-choice": TaskInfo(
        {"accuracy": Metric("acc"), "loss": _LOSS},
        ("accuracy",),
        ("SEQ_CLS", "CAUSAL_LM"),
        "AutoModel",
    ),
}


def task_info(config: RunConfig) -> TaskInfo:
    """Return what is known of the run's task."""
    return TASKS[config.model.task]


def headline(config: RunConfig) -> str:
    """Return the metric by which the run's models and sites are compared."""
    generates = config.train.generate_tokens > 0
    measured = [name for name in task_info(config).headlines if name != "rouge_l" or generates]
    return measured[0]
