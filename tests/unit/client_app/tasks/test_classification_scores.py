import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import mannwhitneyu

from client_app.tasks.classification_scores import ClassificationScores


def measured(logits: np.ndarray, labels: np.ndarray, batch: int = 7) -> dict[str, float]:
    scores = ClassificationScores(logits.shape[1])
    for start in range(0, len(labels), batch):
        scores.update(
            torch.tensor(logits[start : start + batch], dtype=torch.float32),
            {"labels": torch.tensor(labels[start : start + batch])},
        )
    return scores.compute()


def area(score: np.ndarray, positive: np.ndarray) -> float:
    """AUC as the Mann-Whitney statistic."""
    pairs = positive.sum() * (~positive).sum()
    return float(mannwhitneyu(score[positive], score[~positive]).statistic / pairs)


def macro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    values = []
    for c in np.union1d(predicted, labels):
        hits = np.sum((predicted == c) & (labels == c))
        values.append(2 * hits / (np.sum(predicted == c) + np.sum(labels == c)))
    return float(np.mean(values))


@pytest.mark.parametrize(("classes", "present"), [(2, 2), (4, 4), (4, 3), (5, 2)])
def test_metrics_equal_their_definitions(classes: int, present: int) -> None:
    rng = np.random.default_rng(classes * 10 + present)
    labels = rng.integers(0, present, 83)
    logits = rng.normal(size=(83, classes)) + np.eye(classes)[labels]
    logits = logits.astype(np.float32).astype(np.float64)

    got = measured(logits, labels)

    log_p = log_softmax(logits, axis=1)
    predicted = logits.argmax(axis=1)
    areas = [area(np.exp(log_p[:, c]), labels == c) for c in range(present)]
    assert got == pytest.approx(
        {
            "loss": -log_p[np.arange(83), labels].mean(),
            "accuracy": (predicted == labels).mean(),
            "f1": macro_f1(predicted, labels),
            "auc": np.mean(areas),
            "examples": 83,
        },
        rel=1e-6,
    )


def test_a_confident_model_has_no_ties() -> None:
    margin = np.linspace(20.0, 30.0, 40)  # a softmax in single precision is 1.0 for all of them
    logits = np.stack([np.zeros(40), margin], axis=1)
    labels = np.array([0] * 20 + [1] * 20)

    assert measured(logits, labels)["auc"] == 1.0


@pytest.mark.parametrize("records", [2, 13, 14, 15, 20, 21, 22])  # with 13 it was 1.0000001
def test_a_perfect_ranking_has_an_area_of_one_and_not_more(records: int) -> None:
    for positive in range(1, records):
        labels = np.array([0] * (records - positive) + [1] * positive)
        rising = np.linspace(-1.0, 1.0, records)

        auc = measured(np.stack([-rising, rising], axis=1), labels)["auc"]

        assert 1.0 - 1e-6 < auc <= 1.0


def test_auc_is_left_out_when_one_label_occurs() -> None:
    got = measured(np.array([[2.0, 1.0], [0.0, 1.0]]), np.array([0, 0]))

    assert "auc" not in got
    assert got["accuracy"] == 0.5


def test_nothing_seen() -> None:
    assert ClassificationScores(2).compute() == {"examples": 0.0}


def test_a_non_finite_output_shows_in_the_loss() -> None:
    got = measured(np.array([[np.nan, 1.0], [0.0, 1.0]]), np.array([0, 1]))

    assert np.isnan(got["loss"])
