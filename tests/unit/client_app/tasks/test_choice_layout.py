from typing import Any

import pytest
import torch

from client_app.tasks.choice_layout import lay_out, sees


def item(context: list[int], *choices: list[int]) -> dict[str, Any]:
    return {
        "context": torch.tensor(context, dtype=torch.int32),
        "choices": [torch.tensor(choice, dtype=torch.int32) for choice in choices],
    }


ITEMS = [item([1, 2, 3], [10, 11], [20]), item([5], [30], [40, 41, 42], [50])]


def test_a_question_is_a_row_with_its_context_once() -> None:
    laid = lay_out(ITEMS, 0, share=True)

    assert laid["input_ids"].tolist() == [[1, 2, 3, 10, 11, 20], [5, 30, 40, 41, 42, 50]]
    assert laid["segments"].tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 2, 2, 2, 3]]
    assert laid["position_ids"].tolist() == [[0, 1, 2, 3, 4, 3], [0, 1, 1, 2, 3, 1]]


def test_a_choice_is_a_row_with_the_context_before_it() -> None:
    laid = lay_out(ITEMS, 9, share=False)

    assert laid["input_ids"].tolist() == [
        [1, 2, 3, 10, 11],
        [1, 2, 3, 20, 9],
        [5, 30, 9, 9, 9],
        [5, 40, 41, 42, 9],
        [5, 50, 9, 9, 9],
    ]
    assert laid["segments"][1].tolist() == [0, 0, 0, 1, -1]


@pytest.mark.parametrize("share", [True, False])
def test_every_choice_token_is_read_from_the_one_before_it(share: bool) -> None:
    laid = lay_out(ITEMS, 0, share=share)

    before = laid["input_ids"].flatten()[laid["predictors"]].tolist()
    assert laid["targets"].tolist() == [10, 11, 20, 30, 40, 41, 42, 50]
    assert before == [3, 10, 3, 5, 5, 40, 41, 5]
    assert laid["owners"].tolist() == [0, 0, 1, 2, 3, 3, 3, 4]


def test_choices_do_not_see_each_other() -> None:
    segments = torch.tensor([[0, 0, 1, 1, 2, -1]])

    seen = sees(segments)

    assert seen.shape == (1, 1, 6, 6)
    assert seen[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
