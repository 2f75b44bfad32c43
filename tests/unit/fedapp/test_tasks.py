"""The tables of metrics are complete and say one thing."""

from __future__ import annotations

import pytest

from fedapp.config import ModelSection, RunConfig
from fedapp.tasks import HEADLINES, TASKS, columns, headline, title


def test_every_task_of_the_settings_is_described() -> None:
    field = ModelSection.model_fields["task"].annotation

    assert set(TASKS) == set(field.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize("task", TASKS)
def test_what_is_shown_followed_or_compared_is_a_metric_of_the_task(task: str) -> None:
    info = TASKS[task]

    for names in (info.headlines, info.shown, info.followed):
        assert set(names) <= set(info.metrics)
    for name in info.headlines:  # the report draws it between 0 and 1, upwards
        assert info.metrics[name].is_share
        assert info.metrics[name].higher_is_better
    assert len(set(info.reported)) == len(info.reported)
    assert "examples" in info.reported


def test_a_metric_means_the_same_in_every_task() -> None:
    for name in HEADLINES:
        assert len({info.metrics[name] for info in TASKS.values() if name in info.metrics}) == 1


@pytest.mark.parametrize(
    ("task", "tokens", "expected"),
    [
        ("sequence-classification", 32, ("accuracy", "auc", "f1")),
        ("sequence-classification", 0, ("accuracy", "auc", "f1")),
        ("multiple-choice", 32, ("accuracy", "loss")),
        ("causal-lm", 32, ("rouge_l", "exact_match", "loss", "token_accuracy", "perplexity")),
        ("causal-lm", 0, ("token_accuracy", "loss", "perplexity")),
        ("image-classification", 32, ("accuracy", "auc", "f1")),
        ("image-segmentation", 32, ("dice", "iou", "pixel_accuracy")),
    ],
)
def test_tables_begin_with_the_headline(task: str, tokens: int, expected: tuple[str, ...]) -> None:
    config = RunConfig.from_flat({"model.task": task, "train.generate-tokens": tokens})

    assert columns(config) == expected
    assert headline(config) == expected[0]


def test_names_in_words() -> None:
    assert [title(n) for n in ("accuracy", "auc", "token_accuracy", "rouge_l", "other")] == [
        "Accuracy", "AUC", "Token accuracy", "ROUGE-L", "Other"
    ]  # fmt: skip
