import io
from collections import Counter
from contextlib import redirect_stderr

import pytest

from client_app.data.partition import SMALLEST_SITE, deal
from client_app.data.schemas.classification import labelled_texts
from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import DataError

N = 200
LABELS = [i % 2 for i in range(N)]
EXAMPLES = labelled_texts([f"text {i}" for i in range(N)], [""] * N)
TABLE = Table("t", EXAMPLES, ["B", "A", "C", "A"] * (N // 4))
KEPT = [i for i in range(N) if i % 10]


def dealt(seed: int = 0, **settings: object) -> dict[str, list[int]]:
    return deal(TABLE, LABELS, KEPT, DataSection(**settings), seed)  # type: ignore[arg-type]


def spread(parts: dict[str, list[int]]) -> float:
    """Largest difference between two sites in their share of label 1."""
    shares = [sum(LABELS[i] for i in part) / len(part) for part in parts.values()]
    return max(shares) - min(shares)


@pytest.mark.parametrize("partition", ["natural", "iid", "dirichlet", "groups"])
def test_every_kept_record_goes_to_exactly_one_site(partition: str) -> None:
    parts = dealt(partition=partition, sites=3 if partition == "groups" else 5)

    assert sorted(i for part in parts.values() for i in part) == KEPT


def test_natural_follows_the_site_column_quietly() -> None:
    assert TABLE.sites is not None
    with redirect_stderr(io.StringIO()) as noise:
        parts = dealt(partition="natural")

    assert list(parts) == ["A", "B", "C"]
    assert all(TABLE.sites[i] == site for site, part in parts.items() for i in part)
    assert noise.getvalue() == ""


def test_natural_keeps_a_site_that_lost_every_record() -> None:
    only_a = [1, 3]

    assert deal(TABLE, LABELS, only_a, DataSection(), 0) == {"A": only_a, "B": [], "C": []}
    assert deal(TABLE, LABELS, [], DataSection(), 0) == {"A": [], "B": [], "C": []}


def test_groups_are_whole_natural_sites_drawn_by_the_seed() -> None:
    writers = [f"writer {i % 11}" for i in range(N)]
    table = Table("t", EXAMPLES, writers)

    def groups(seed: int) -> list[set[str]]:
        parts = deal(table, LABELS, KEPT, DataSection(partition="groups", sites=4), seed)
        assert list(parts) == ["site-1", "site-2", "site-3", "site-4"]
        return [{writers[i] for i in part} for part in parts.values()]

    assert sorted(len(group) for group in groups(0)) == [2, 3, 3, 3]
    assert sum(len(group) for group in groups(0)) == len(set(writers))
    assert groups(0) == groups(0) != groups(1)


def test_groups_need_as_many_natural_sites() -> None:
    with pytest.raises(DataError, match="3 sites of its own cannot be dealt to 4 groups"):
        dealt(partition="groups", sites=4)


def test_natural_needs_a_source_with_sites() -> None:
    table = Table("t", labelled_texts(["a"], ["0"]), None)

    with pytest.raises(DataError, match=r"set data.partition to dirichlet or iid"):
        deal(table, [0], [0], DataSection(), 0)


def test_iid_sites_are_of_one_size_and_mixed() -> None:
    parts = dealt(partition="iid", sites=4)

    assert Counter(map(len, parts.values())) == {45: 4}
    assert all(max(part) - min(part) > N / 2 for part in parts.values())  # no contiguous pieces


def test_dirichlet_concentration_sets_how_different_the_sites_are() -> None:
    mild = [spread(dealt(s, partition="dirichlet", dirichlet_alpha=1000.0)) for s in range(3)]
    wild = [spread(dealt(s, partition="dirichlet", dirichlet_alpha=0.5)) for s in range(3)]

    assert max(mild) < 0.2 < min(wild)


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_draws_are_seeded(partition: str) -> None:
    first = dealt(partition=partition)

    assert dealt(partition=partition) == first
    assert dealt(1, partition=partition) != first


def test_names_sort_by_number() -> None:
    assert list(dealt(partition="iid", sites=12))[8:10] == ["site-09", "site-10"]


def test_too_many_sites_are_one_sentence() -> None:
    with pytest.raises(DataError, match="180 records cannot be dealt to 181 sites"):
        dealt(partition="iid", sites=181)
    with pytest.raises(DataError, match=f"fewer than {SMALLEST_SITE} records in every draw"):
        dealt(partition="dirichlet", sites=150)
