"""Questions with four choices, of which one is of the odd kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedapp.seeds import derive_seed

CHOICES = 4


class OddOneOut(NamedTuple):
    """One question: the kind of the right choice, the choices, the number of the right one."""

    kind: str
    choices: list[str]
    answer: int


def odd_one_out(texts: Mapping[str, Sequence[str]], name: str) -> list[OddOneOut]:
    """Deal texts of two kinds to as many questions as they allow; each is used at most once.

    Parameters
    ----------
    texts : mapping of str to sequence of str
        The texts of each of two kinds; no text occurs twice.
    name : str
        Seeds the draw: the result depends on it and on the texts alone.

    Returns
    -------
    list of OddOneOut
        Kinds and right places in random order.
    """
    rng = np.random.default_rng(derive_seed(0, "odd-one-out", name))
    first, second = texts
    asked = dict(zip(texts, most_questions(len(texts[first]), len(texts[second])), strict=True))
    left = {
        kind: [values[i] for i in rng.permutation(len(values))] for kind, values in texts.items()
    }
    kinds = [kind for kind, count in asked.items() for _ in range(count)]
    questions = []
    for place in rng.permutation(len(kinds)):
        kind = kinds[place]
        other = second if kind == first else first
        choices = [left[other].pop() for _ in range(CHOICES - 1)]
        answer = int(rng.integers(CHOICES))
        choices.insert(answer, left[kind].pop())
        questions.append(OddOneOut(kind, choices, answer))
    return questions


def most_questions(first: int, second: int) -> tuple[int, int]:
    """Return how many questions to ask for each kind, given so many texts of each.

    Their sum is as large as it can be; of several such pairs it is the most even one.
    """
    others = CHOICES - 1
    pairs = [
        (one, min((first - one) // others, second - others * one))
        for one in range(min(first, second // others) + 1)
    ]
    return max(pairs, key=lambda pair: (sum(pair), min(pair), pair))
