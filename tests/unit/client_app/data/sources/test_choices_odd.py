from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.data.sources.choices_odd import most_questions, odd_one_out

COUNTS = st.integers(0, 40)


@given(COUNTS, COUNTS)
def test_no_dealing_gives_more_questions_or_as_many_more_evenly(first: int, second: int) -> None:
    def fits(one: int, two: int) -> bool:
        return one + 3 * two <= first and 3 * one + two <= second

    found = most_questions(first, second)

    possible = [(a, b) for a in range(first + 1) for b in range(second + 1) if fits(a, b)]
    assert found in possible
    best = max(sum(pair) for pair in possible)
    assert sum(found) == best
    assert min(found) == max(min(pair) for pair in possible if sum(pair) == best)


@given(COUNTS, COUNTS)
def test_every_text_is_used_at_most_once_and_one_of_four_is_odd(ill: int, well: int) -> None:
    texts = {"ill": [f"ill {n}" for n in range(ill)], "well": [f"well {n}" for n in range(well)]}

    questions = odd_one_out(texts, "any")

    used = Counter(text for each in questions for text in each.choices)
    assert set(used.values()) <= {1}
    assert len(questions) == sum(most_questions(ill, well))
    for kind, choices, answer in questions:
        assert len(choices) == 4
        assert [text.split()[0] == kind for text in choices] == [n == answer for n in range(4)]


def test_the_draw_depends_on_the_name_alone() -> None:
    texts = {"a": [f"a{n}" for n in range(40)], "b": [f"b{n}" for n in range(40)]}

    assert odd_one_out(texts, "one") == odd_one_out(texts, "one")
    assert odd_one_out(texts, "one") != odd_one_out(texts, "two")


@pytest.mark.parametrize("part", ["kind", "answer"])
def test_kinds_and_places_come_in_random_order(part: str) -> None:
    texts = {"a": [f"a{n}" for n in range(400)], "b": [f"b{n}" for n in range(400)]}
    values = [getattr(each, part) for each in odd_one_out(texts, "one")]

    counts = Counter(values)
    expected = len(values) / len(counts)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    assert values[:20] != sorted(values[:20])
