import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from client_app.data.load import load_site
from client_app.data.schemas.multiple_choice import MultipleChoiceSchema, question
from client_app.data.sources.files import read_files
from client_app.data.table import Table
from fedapp.config import DataSection, RunConfig
from fedapp.errors import DataError

ROWS = [
    {"context": "Fever and", "choices": ["cough", "a broken leg"], "answer": 0, "site": "A"},
    {"context": "Chest pain", "choices": ["rest", "angina", "no"], "answer": "angina", "site": "B"},
]
SECRET = "Maria"


def read(path: Path, **settings: Any) -> Table:
    data = DataSection(source=str(path), **settings)
    return read_files(data, MultipleChoiceSchema(data))


def write_jsonl(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, ROWS)))


def write_parquet(path: Path) -> None:
    rows = [row | {"answer": label} for row, label in zip(ROWS, (0, 1), strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_folder(path: Path) -> None:
    Dataset.from_list([row | {"answer": n} for n, row in enumerate(ROWS)]).save_to_disk(path)


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.jsonl", write_jsonl), ("a.parquet", write_parquet), ("folder", write_folder)],
)
def test_formats_with_lists(name: str, write: Any, tmp_path: Path) -> None:
    write(tmp_path / name)

    table = read(tmp_path / name)

    assert [example.fields for example in table.examples] == [
        {"context": "Fever and", "choices": ["cough", "a broken leg"], "label": 0},
        {"context": "Chest pain", "choices": ["rest", "angina", "no"], "label": 1},
    ]
    assert table.sites == ["A", "B"]
    assert table.strata == ["", ""]


def test_csv_has_one_column_a_choice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "sent,ending0,ending1,ending2,label,topic,site\n"
        "Fever and,cough,a broken leg,,0,lung,A\nChest pain,rest,angina,no,angina,heart,B\n"
    )

    table = read(
        tmp_path / "a.csv",
        context_column="sent",
        choices_column="ending0, ending1,ending2",
        answer_column="label",
        stratum_column="topic",
    )

    assert [example.fields["choices"] for example in table.examples] == [
        ["cough", "a broken leg"],
        ["rest", "angina", "no"],
    ]
    assert [example.fields["label"] for example in table.examples] == [0, 1]
    assert table.strata == ["lung", "heart"]


@pytest.mark.parametrize(
    ("answer", "label"),
    [(1, 1), (1.0, 1), ("1", 1), (" 2", 2), ("no ", 2), ("7", 0)],
)
def test_answers_as_number_or_text(answer: Any, label: int, tmp_path: Path) -> None:
    row = {"context": "x", "choices": ["7", "angina", "no"], "answer": answer}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))

    (example,) = read(tmp_path / "a.jsonl", partition="iid").examples

    assert example.fields["label"] == label


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"choices": ["a"]}, "column 'choices', row 2: expected 2 to 16 choices, got 1;"),
        (
            {"choices": [str(n) for n in range(17)]},
            "column 'choices', row 2: expected 2 to 16 choices, got 17;",
        ),
        (
            {"choices": SECRET},
            "column 'choices', row 2: expected a list of 2 to 16 texts, got text;",
        ),
        (
            {"choices": {"a": SECRET}},
            "column 'choices', row 2: expected a list of 2 to 16 texts, got a dict",
        ),
        (
            {"choices": None},
            "column 'choices', row 2: expected a list of 2 to 16 texts, got nothing",
        ),
        (
            {"choices": [SECRET, " "]},
            "column 'choices', row 2, choice 1: expected text, got nothing;",
        ),
        ({"choices": [SECRET, 3]}, "column 'choices', row 2, choice 1: expected text, got a int;"),
        (
            {"choices": ["x", SECRET, f" {SECRET} "]},
            "column 'choices', row 2: expected 3 different choices, got the same text in choices "
            "1 and 2;",
        ),
        (
            {"answer": 2},
            "column 'answer', row 2: expected the text of a choice or its number from 0 to 1, got "
            "another number;",
        ),
        ({"answer": -1}, "column 'answer', row 2: expected the text of a choice or its number"),
        ({"answer": 0.5}, "column 'answer', row 2: expected the text of a choice or its number"),
        (
            {"answer": SECRET},
            "column 'answer', row 2: expected the text of a choice or its number from 0 to 1, got "
            "another text of 5 characters;",
        ),
        ({"answer": True}, "number from 0 to 1, got a bool;"),
        ({"answer": None}, "number from 0 to 1, got nothing;"),
        ({"answer": [0]}, "number from 0 to 1, got a list;"),
        ({"context": " "}, "column 'context', row 2: expected text, got nothing;"),
        ({"context": 5}, "column 'context', row 2: expected text, got a int;"),
    ],
)
def test_a_bad_row_is_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    good = {"context": "x", "choices": ["yes", "no"], "answer": 0, "site": "North"}
    (tmp_path / "a.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(good | change))

    with pytest.raises(DataError, match=re.escape(sentence)) as got:
        read(tmp_path / "a.jsonl")

    assert got.value.site == "North"
    assert SECRET not in str(got.value)
    assert "\n" not in str(got.value)


def test_a_gap_among_the_columns_of_a_csv_is_an_empty_choice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("context,a,b,c,answer\nx,yes,,no,0\n")

    with pytest.raises(DataError, match=r"column 'a, b, c', row 1, choice 1: expected text"):
        read(tmp_path / "a.csv", choices_column="a,b,c", partition="iid")


def test_a_list_that_csv_cannot_hold_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('context,choices,answer\nx,"[1, 2]",0\n')

    with pytest.raises(DataError, match=r"name one column a choice in data\.choices-column"):
        read(tmp_path / "a.csv", partition="iid")


def test_a_missing_column_names_the_settings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"context": "x", "answer": 0}')

    with pytest.raises(DataError, match=r"expected a column 'choices'.*data\.choices-column"):
        read(tmp_path / "a.jsonl", partition="iid")


def test_the_same_question_in_another_order_is_a_duplicate(tmp_path: Path) -> None:
    rows = [
        {"context": f"{n}", "choices": ["yes", "no"], "answer": 0, "site": "A"} for n in range(9)
    ]
    rows.append({"context": "3 ", "choices": ["no", "yes"], "answer": 1, "site": "A"})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = RunConfig.from_flat(
        {"data.source": str(tmp_path / "a.jsonl"), "model.task": "multiple-choice"}
    )

    data = load_site(config, "A")

    assert sum(map(len, data.splits.values())) == 9
    assert data.label_map == []
    assert "1 record that repeats an earlier one dropped at this site" in data.notes


def test_identity_and_digest() -> None:
    one, two = question("x", ["a", "b c"], 0).fields, question("x", ["b  c", "a"], 1).fields
    other = question("x", ["a", "b c"], 1).fields

    assert MultipleChoiceSchema.content(one) == MultipleChoiceSchema.content(two)
    assert MultipleChoiceSchema.marks(one, []) == MultipleChoiceSchema.marks(two, [])
    assert MultipleChoiceSchema.marks(one, []) != MultipleChoiceSchema.marks(other, [])
    assert MultipleChoiceSchema.content(one) != question("x", ["a b", "c"], 0).content
