import pytest

from client_app.data.labels import described, not_in_map, resolve_label_map
from client_app.data.schemas.classification import labelled_texts
from client_app.data.table import Table
from fedapp.errors import ConfigError, DataError


def table(labels: list[str], **options: object) -> Table:
    examples = labelled_texts(["t"] * len(labels), labels)
    return Table("notes.csv", examples, None, **options)  # type: ignore[arg-type]


def test_found_labels_are_sorted_numbers_by_value() -> None:
    assert resolve_label_map(table(["10", "9", "-1", "9"]), ()) == ["-1", "9", "10"]
    assert resolve_label_map(table(["yes", "no", "10"]), ()) == ["10", "no", "yes"]
    assert resolve_label_map(table(["1", "001", "2", "01"]), ()) == ["001", "01", "1", "2"]


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


def test_where_labels_must_be_named_none_is_found() -> None:
    with pytest.raises(ConfigError, match=r"data\.labels is empty: a deployed site"):
        resolve_label_map(table(["yes", "no"]), (), may_find=False)

    assert resolve_label_map(table(["yes"]), ("no", "yes"), may_find=False) == ["no", "yes"]
    fixed = table(["b"], label_map=("b", "a"))
    assert resolve_label_map(fixed, (), may_find=False) == ["b", "a"]


def test_a_label_outside_the_map_is_described_by_row_and_length() -> None:
    error = not_in_map("Muster", table(["Muster"]), 17, "North")

    assert str(error) == (
        "site North: notes.csv, column 'label', row 17: a value of 6 characters is not in "
        "data.labels; correct the row, add the label there, or check data.label-column"
    )


def test_a_label_with_a_comma_is_told_that_it_cannot_be_named() -> None:
    error = not_in_map("yes, mild", table(["yes, mild"]), 1, None)

    assert "is not in data.labels (it holds a comma, which no label named there can);" in str(error)


def test_a_value_is_described_by_its_length() -> None:
    assert described("") == "nothing"
    assert described("4711") == "a value of 4 characters"


def test_found_labels_that_differ_in_capitals_or_spaces_are_a_slip() -> None:
    for label in ("UTI ", "u\uff54i", "ut\u2170"):
        with pytest.raises(DataError, match="capitals, spaces or the Unicode form"):
            resolve_label_map(table(["uti", label, "flu"]), ())
    with pytest.raises(DataError, match="capitals, spaces or the Unicode form"):
        resolve_label_map(table(["fi\u00e8vre", "fie\u0300vre"]), ())
    assert resolve_label_map(table(["uti", "UTI"]), ("uti", "UTI")) == ["uti", "UTI"]


@pytest.mark.parametrize("label", ["ill\n# a headline", "ill\x1b[2J", "ill\u200b", "\u202ewell"])
def test_a_label_with_what_cannot_be_seen_is_refused(label: str) -> None:
    for values, wanted in ((["well", label], ()), (["well"], ("well", label))):
        with pytest.raises(DataError, match="cannot be seen") as caught:
            resolve_label_map(table(values), wanted)
        assert str(caught.value).isprintable()
