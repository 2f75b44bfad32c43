import hashlib
import unicodedata

import pytest

from client_app.data.checks import check_disjoint, check_site, content_digest, find_duplicates
from client_app.data.site_data import Record, SiteData
from fedapp.errors import DataError

SECRET = "Maria Muster, 63, chest pain"


def site(train: list[tuple[str, int]], validation: list[str], test: list[str]) -> SiteData:
    return SiteData(
        "North",
        ["no", "yes"],
        {
            "train": [Record(text=text, label=label) for text, label in train],
            "validation": [Record(text=text, label=0) for text in validation],
            "test": [Record(text=text, label=0) for text in test],
        },
    )


def test_the_digest_is_sha256_of_the_spaced_and_composed_text() -> None:
    assert content_digest("a  b\n") == hashlib.sha256(b"a b").digest()
    assert content_digest(unicodedata.normalize("NFD", "é")) == content_digest("é")
    assert content_digest("a b") != content_digest("A b")


def test_a_repeated_text_points_to_its_first_occurrence() -> None:
    assert find_duplicates(["x", "y", " x ", "z", "x"]) == {2: 0, 4: 0}


def test_groups_without_a_common_text_pass() -> None:
    check_disjoint({"A": ["x", "x"], "B": ["y"]}, "sites")


def test_a_text_in_two_sites_is_refused_without_showing_it() -> None:
    with pytest.raises(DataError, match="in two sites, got 1 in two of them") as caught:
        check_disjoint({"Anna": [SECRET], "B": ["y"], "Carl": ["z", f" {SECRET}"]}, "sites")

    assert not any(word in str(caught.value) for word in ("Maria", "Anna", "Carl"))


def test_a_good_site_passes() -> None:
    check_site(site([("a", 0), ("b", 1)], ["c"], ["d"]), one_class="refuse")


@pytest.mark.parametrize("leak", ["validation", "test"])
def test_a_record_in_two_splits_is_refused_without_showing_it(leak: str) -> None:
    data = site([("a", 0), (SECRET, 1)], ["c"], ["d"])
    data.splits[leak].append(Record(text=SECRET, label=1))

    with pytest.raises(DataError, match=f"in both 'train' and '{leak}'") as caught:
        check_site(data, one_class="refuse")

    assert str(caught.value).startswith("site North: ")
    assert "Maria" not in str(caught.value)


def test_an_empty_split_is_named_with_the_site() -> None:
    with pytest.raises(DataError, match=r"site North: the test split is empty.*of the site's 3"):
        check_site(site([("a", 0), ("b", 1)], ["c"], []), one_class="refuse")


def test_one_class_is_refused_unless_allowed() -> None:
    data = site([("a", 1), ("b", 1)], ["c"], ["d"])

    check_site(data, one_class="allow")
    with pytest.raises(DataError, match="site North: the training records all carry one") as caught:
        check_site(data, one_class="refuse")
    assert not any(told in str(caught.value) for told in ("yes", "no", "all 2", "2 training"))
