import math

import pytest
import torch

from client_app.tasks.choice_scores import ChoiceScores, offered, score_matrix

NONE = float("-inf")


def test_scores_are_laid_out_question_by_question() -> None:
    rows = score_matrix(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), offered([2, 3]))

    assert rows.tolist() == [[1.0, 2.0, NONE], [3.0, 4.0, 5.0]]


def test_a_place_without_a_choice_has_no_gradient() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)

    torch.nn.functional.cross_entropy(
        score_matrix(scores, offered([1, 2])), torch.tensor([0, 1])
    ).backward()

    chance = math.exp(2) / (math.exp(2) + math.exp(3))
    assert scores.grad is not None
    assert torch.allclose(scores.grad, torch.tensor([0.0, chance / 2, -chance / 2]))


def test_metrics_against_a_plain_loop() -> None:
    questions = [([0.3, 2.0], 1), ([1.0, -1.0, 0.5], 2), ([0.0, 0.1, 0.2, 0.9], 3)]
    scores = ChoiceScores()
    for part in (questions[:1], questions[1:]):
        flat = torch.tensor([value for values, _ in part for value in values])
        output = score_matrix(flat, offered([len(values) for values, _ in part]))
        scores.update(output, {"labels": torch.tensor([label for _, label in part])})

    losses = [math.log(sum(map(math.exp, values))) - values[label] for values, label in questions]
    assert scores.compute() == {
        "accuracy": pytest.approx(2 / 3),
        "loss": pytest.approx(sum(losses) / 3),
        "examples": 3.0,
    }


@pytest.mark.parametrize("label", [0, 1, 2])
def test_a_tie_does_not_depend_on_the_order(label: int) -> None:
    scores = ChoiceScores()
    scores.update(torch.tensor([[1.0, 1.0, 0.0, NONE]]), {"labels": torch.tensor([label])})

    assert scores.compute()["accuracy"] == (0.5 if label < 2 else 0.0)


def test_nothing_seen() -> None:
    assert ChoiceScores().compute() == {"examples": 0.0}


def test_a_loss_that_is_not_a_number_is_not_hidden() -> None:
    scores = ChoiceScores()
    scores.update(torch.tensor([[float("nan"), 1.0]]), {"labels": torch.tensor([1])})

    assert math.isnan(scores.compute()["loss"])
