from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.batching import GROUP_BATCHES, batches, ordered_batches


def items(lengths: list[int]) -> list[dict[str, int]]:
    return [{"length": length} for length in lengths]


def padding(dealt: list[list[int]], lengths: list[int]) -> int:
    return sum(max(lengths[i] for i in b) * len(b) for b in dealt) - sum(lengths)


@given(
    st.lists(st.integers(1, 128), max_size=300),
    st.integers(1, 40),
    st.integers(0, 2**63 - 1),
    st.booleans(),
)
def test_every_record_occurs_exactly_once_an_epoch(
    lengths: list[int], batch_size: int, seed: int, grouping: bool
) -> None:
    dealt = batches(items(lengths), batch_size, seed, grouping)

    assert sorted(chain.from_iterable(dealt)) == list(range(len(lengths)))
    assert all(0 < len(batch) <= batch_size for batch in dealt)
    assert sum(len(batch) < batch_size for batch in dealt) <= 1


@pytest.mark.parametrize("grouping", [True, False])
def test_batches_depend_on_the_seed_alone(grouping: bool) -> None:
    data = items(np.random.default_rng(0).integers(20, 60, 200).tolist())

    first = batches(data, 16, 7, grouping)

    assert batches(data, 16, 7, grouping) == first
    assert batches(data, 16, 8, grouping) != first


def test_grouping_saves_most_of_the_padding() -> None:
    lengths = np.random.default_rng(0).integers(10, 120, 2000).tolist()

    grouped = padding(batches(items(lengths), 16, 0, True), lengths)
    plain = padding(batches(items(lengths), 16, 0, False), lengths)

    assert grouped < 0.1 * plain


def test_long_batches_do_not_come_in_order() -> None:
    lengths = list(range(400))

    longest = [max(lengths[i] for i in b) for b in batches(items(lengths), 10, 0, True)]

    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_a_large_site_meets_new_neighbours_every_epoch() -> None:
    data = items([1 + i % 7 for i in range(16 * GROUP_BATCHES * 3)])

    def sets(seed: int) -> set[frozenset[int]]:
        return {frozenset(batch) for batch in batches(data, 16, seed, True)}

    assert not sets(0) & sets(1)


def test_evaluation_goes_from_long_to_short() -> None:
    assert ordered_batches(items([3, 9, 5, 9]), 3) == [[1, 3, 2], [0]]
    assert ordered_batches([], 3) == []
