from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from client_app.evaluation import evaluate
from client_app.tasks.classification_scores import ClassificationScores
from fedapp.config import RunConfig, TrainSection
from fedapp.errors import TrainingError

CPU = torch.device("cpu")


class Linear:
    """The parts of a task that evaluation uses, on plain vectors."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []
        self.modes: set[tuple[bool, bool]] = set()

    def collate(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {
            "x": torch.stack([item["x"] for item in items]),
            "labels": torch.tensor([item["label"] for item in items]),
        }

    def output(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.batch_sizes.append(len(batch["x"]))
        self.modes.add((model.training, torch.is_inference_mode_enabled()))
        result: torch.Tensor = model(batch["x"])
        return result

    def scores(self, device: torch.device) -> ClassificationScores:
        return ClassificationScores(2)


def prepare(n: int) -> tuple[Any, list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))
    items = [{"x": torch.randn(3), "label": i % 2, "length": 1 + i % 5} for i in range(n)]
    return SimpleNamespace(model=model, task=Linear()), items


def test_the_order_and_size_of_batches_do_not_matter() -> None:
    resident, items = prepare(23)

    small = evaluate(resident, items, RunConfig(train=TrainSection(eval_batch_size=4)), CPU)
    whole = evaluate(resident, items, RunConfig(), CPU)

    x = torch.stack([item["x"] for item in items])
    labels = torch.tensor([item["label"] for item in items])
    logits = resident.model[1](x)
    assert resident.task.batch_sizes == [4, 4, 4, 4, 4, 3, 23]
    assert small == pytest.approx(whole, rel=1e-6)
    assert whole["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert whole["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert whole["examples"] == 23


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_measured_in_evaluation_mode_and_put_back(training: bool) -> None:
    resident, items = prepare(5)
    resident.model.train(training)

    evaluate(resident, items, RunConfig(), CPU)

    assert resident.model.training is training
    assert resident.task.modes == {(False, True)}


def test_no_random_number_is_drawn() -> None:
    resident, items = prepare(5)
    before = torch.random.get_rng_state()

    evaluate(resident, items, RunConfig(), CPU)

    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_loss_that_is_not_finite_is_named() -> None:
    resident, items = prepare(5)
    nn.init.constant_(resident.model[1].weight, float("inf"))

    with pytest.raises(TrainingError, match="the loss on 5 evaluation records is not finite"):
        evaluate(resident, items, RunConfig(), CPU)


def test_an_empty_split_has_no_metrics() -> None:
    resident, _ = prepare(1)

    assert evaluate(resident, [], RunConfig(), CPU) == {"examples": 0.0}
