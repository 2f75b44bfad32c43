import pytest

from client_app.data.labels import label_index, resolve_label_map, shown
from client_app.data.table import Table
from fedapp.errors import DataError


def table(labels: list[str], **options: object) -> Table:
    return Table("notes.csv", ["t"] * len(labels), labels, None, **options)  # type: ignore[arg-type]


def test_found_labels_are_sorted_numbers_by_value() -> None:
    assert resolve_label_map(table(["10", "9", "-1", "9"]), ()) == ["-1", "9", "10"]
    assert resolve_label_map(table(["yes", "no", "10"]), ()) == ["10", "no", "yes"]


def test_configured_labels_come_before_the_source_and_the_source_before_the_values() -> None:
    source = table(["b", "a"], label_map=("b", "a"))

    assert resolve_label_map(source, ()) == ["b", "a"]
    assert resolve_label_map(source, ("c", "b", "a")) == ["c", "b", "a"]


def test_one_label_is_no_task() -> None:
    with pytest.raises(DataError, match=r"column 'label': expected at least 2.*got 1"):
        resolve_label_map(table(["a", "a"]), ())


def test_a_label_named_twice_is_refused() -> None:
    with pytest.raises(DataError, match="names a label twice"):
        resolve_label_map(table(["a", "b"]), ("a", "b", "a"))


@pytest.mark.parametrize(
    "labels",
    [[f"Maria {i}" for i in range(101)], ["a", "Maria Muster was admitted " + "with pain " * 10]],
)
def test_a_text_column_named_by_mistake_never_becomes_a_label_map(labels: list[str]) -> None:
    with pytest.raises(DataError, match="does not look like labels") as caught:
        resolve_label_map(table(labels), ())

    assert "Maria" not in str(caught.value)


def test_a_label_outside_the_map_names_site_column_row_and_the_map() -> None:
    with pytest.raises(DataError) as caught:
        label_index("maybe", ["no", "yes"], table(["maybe"]), 17, "North")

    assert str(caught.value) == (
        "site North: notes.csv, column 'label', row 17: expected one of 'no', 'yes', got 'maybe'; "
        "correct the row or add the label to data.labels"
    )


def test_only_short_codes_are_shown() -> None:
    assert shown("C34.1") == "'C34.1'"
    assert shown("") == "nothing"
    assert shown("Maria Muster") == "a value of 12 characters"
