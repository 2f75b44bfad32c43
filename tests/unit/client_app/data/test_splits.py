from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from client_app.data.splits import stratified_splits, subsample

PARTS = {"validation_fraction": 0.2, "test_fraction": 0.2}


def split(labels: list[int], seed: int = 0, site: str = "A") -> dict[str, list[int]]:
    return stratified_splits(labels, **PARTS, seed=seed, site=site)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=120),
    st.floats(0.05, 0.45),
    st.floats(0.05, 0.45),
    st.integers(0, 5),
)
def test_every_record_is_in_exactly_one_split(
    labels: list[int], validation: float, test: float, seed: int
) -> None:
    parts = stratified_splits(
        labels, validation_fraction=validation, test_fraction=test, seed=seed, site="A"
    )

    assert sorted(parts["train"] + parts["validation"] + parts["test"]) == list(range(len(labels)))
    assert {labels[i] for i in parts["train"]} == set(labels)


@given(st.lists(st.integers(3, 40), min_size=1, max_size=4))
def test_every_label_gets_its_share_within_one_record(sizes: list[int]) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]

    parts = split(labels)

    for name in ("validation", "test"):
        counts = Counter(labels[i] for i in parts[name])
        assert all(abs(counts[c] - 0.2 * n) <= 1 for c, n in enumerate(sizes))
        assert all(counts[c] >= 1 for c in range(len(sizes)))


def test_sizes_round_half_up() -> None:
    parts = split([0] * 40 + [1] * 33)  # 73 * 0.2 = 14.6

    assert (len(parts["validation"]), len(parts["test"])) == (15, 15)


def test_a_label_with_two_records_is_in_training_and_in_one_other_split_at_most() -> None:
    parts = split([0] * 20 + [1] * 2)

    where = [name for name, part in parts.items() for i in part if i >= 20]
    assert where.count("train") >= 1
    assert len(where) == 2


def test_a_lone_record_is_trained_on() -> None:
    assert split([7]) == {"train": [0], "validation": [], "test": []}


def test_splits_depend_on_seed_and_site_and_on_nothing_else() -> None:
    labels = [0, 1] * 30
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    first = split(labels)
    np.random.seed(2)  # noqa: NPY002

    assert split(labels) == first
    assert split(labels, seed=1) != first
    assert split(labels, site="B") != first


def test_records_are_shuffled_before_they_are_dealt() -> None:
    parts = split([0] * 100)

    assert parts["test"] != list(range(20))
    assert 30 < np.mean(parts["test"]) < 70


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 30))
def test_a_subsample_keeps_the_most_allowed_by_share(labels: list[int], most: int) -> None:
    kept = subsample(labels, most, seed=0, site="A")

    assert len(set(kept)) == len(kept)
    assert len(kept) <= max(most, len(set(labels)))
    if len(labels) <= most:
        assert kept == list(range(len(labels)))


def test_a_subsample_is_stratified() -> None:
    labels = [0] * 80 + [1] * 20

    kept = subsample(labels, 10, seed=0, site="A")

    assert Counter(labels[i] for i in kept) == {0: 8, 1: 2}
    assert subsample(labels, 0, seed=0, site="A") == list(range(100))
