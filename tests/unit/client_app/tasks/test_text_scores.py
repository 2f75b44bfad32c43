"""ROUGE-L against a longest common subsequence by hand."""

import random
import re
from functools import cache

import pytest

from client_app.tasks.text_scores import exact_match, rouge_l


def by_hand(text: str, reference: str) -> float:
    one, two = (re.findall("[a-z0-9]+", each.lower()) for each in (text, reference))

    @cache
    def longest(i: int, j: int) -> int:
        if i == len(one) or j == len(two):
            return 0
        if one[i] == two[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    common = longest(0, 0)
    if not common:
        return 0.0
    precision, recall = common / len(one), common / len(two)
    return 2 * precision * recall / (precision + recall)


def test_rouge_l_is_the_f_score_of_the_longest_common_subsequence() -> None:
    draw = random.Random(0)
    words = ["high", "Low", "BP", "145", "yes,", "no.", "ECG-normal"]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 7))) for _ in range(60)]
    references = [" ".join(draw.choices(words, k=draw.randint(1, 7))) for _ in range(60)]

    values = [by_hand(*pair) for pair in zip(texts, references, strict=True)]

    assert rouge_l(texts, references) == pytest.approx(sum(values) / 60, abs=1e-6)
    assert 0.1 < sum(values) / 60 < 0.9


def test_letters_of_other_languages_are_letters() -> None:
    assert rouge_l(["Müdigkeit, Fieber"], ["müdigkeit und fieber"]) == pytest.approx(0.8)
    assert rouge_l(["高血压"], ["高血压"]) == pytest.approx(1.0)
    assert rouge_l([""], ["ja"]) == 0.0


def test_a_match_is_exact_but_for_spacing() -> None:
    assert exact_match(["yes,  145\n", "Yes", "no"], ["yes, 145", "yes", "no"]) == pytest.approx(
        2 / 3
    )
