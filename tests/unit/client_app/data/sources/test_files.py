import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from client_app.data.schemas.classification import ClassificationSchema
from client_app.data.sources.files import read_files
from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import ConfigError, DataError

TEXTS = ['Chest pain, "sharp"\nsince Monday', "Müdigkeit", "Fever"]
LABELS = ["yes", "no", "yes"]
SITES = ["North", "South", "North"]
SECRET = "Maria"


def read(path: Path, **settings: object) -> Table:
    data = DataSection(source=str(path), **settings)  # type: ignore[arg-type]
    return read_files(data, ClassificationSchema(data))


def write_csv(path: Path) -> None:
    path.write_bytes(
        b"\xef\xbb\xbfnr,text,label,site\r\n"
        b'1,"Chest pain, ""sharp""\nsince Monday",yes,North\r\n'
        b"2,M\xc3\xbcdigkeit,no,South\r\n\r\n3,Fever, yes ,North\r\n"
    )


def write_tsv(path: Path) -> None:
    path.write_text(
        'text\tlabel\tsite\n"Chest pain, ""sharp""\nsince Monday"\tyes\tNorth\n'
        "Müdigkeit\tno\tSouth\nFever\tyes\tNorth\n",
        encoding="utf-8",
    )


def write_jsonl(path: Path) -> None:
    rows = [
        {"text": t, "label": y, "site": s, "extra": None}
        for t, y, s in zip(TEXTS, LABELS, SITES, strict=True)
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"site": SITES, "text": TEXTS, "label": LABELS}), path)


def write_folder(path: Path) -> None:
    features = Features(
        {"text": Value("string"), "label": ClassLabel(names=["no", "yes"]), "site": Value("string")}
    )
    whole = Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1], "site": SITES}, features)
    whole.save_to_disk(path)


def write_split_folder(path: Path) -> None:
    parts = [
        Dataset.from_dict({"text": TEXTS[a:b], "label": LABELS[a:b], "site": SITES[a:b]})
        for a, b in ((0, 2), (2, 3))
    ]
    DatasetDict({"train": parts[0], "test": parts[1]}).save_to_disk(path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.csv", write_csv),
        ("a.TSV", write_tsv),
        ("a.jsonl", write_jsonl),
        ("a.parquet", write_parquet),
        ("folder", write_folder),
        ("split_folder", write_split_folder),
    ],
)
def test_every_format_gives_the_same_table(name, write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / name
    write(path)

    table = read(path)

    assert (table.contents, table.strata, table.sites) == (TEXTS, LABELS, SITES)
    assert table.name == name


def test_columns_are_named_in_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("note,outcome,ward\nFever,1,W1\nCough,0,W2\n")

    table = read(path, text_column="note", label_column="outcome", site_column="ward")

    assert (table.contents, table.strata, table.sites) == (
        ["Fever", "Cough"],
        ["1", "0"],
        ["W1", "W2"],
    )


def test_sites_are_not_needed_when_records_are_dealt(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nFever,1\n")

    assert read(path, partition="iid").sites is None


def test_labels_of_other_types_become_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    labels = [True, False, 3, 3.0]
    path.write_text("\n".join(json.dumps({"text": "t", "label": y, "site": 7}) for y in labels))

    table = read(path)

    assert table.strata == ["true", "false", "3", "3"]
    assert table.sites == ["7"] * 4


JSON = '{"text": "Maria", "label": "yes", "site": "North"}\n'
BAD = {
    "wrong encoding": (
        "a.csv",
        "text,label,site\nMaria,no,North\nMüdigkeit,no,North\n".encode("latin-1"),
        r"a.csv, line 3: expected UTF-8 text, byte 32 is in another encoding; save it as UTF-8",
    ),
    "utf-16": (
        "a.csv",
        "text,label,site\nMaria,no,N\n".encode("utf-16"),
        r"line 1: expected UTF-8 text.*`iconv -f UTF-16 -t UTF-8`",
    ),
    "missing column": (
        "a.csv",
        b"txt,label,site\nMaria,no,North\n",
        r"expected a column 'text', got 3 columns of other names; name your columns",
    ),
    "other capitals": (
        "a.csv",
        b"Text,label,site\nMaria,no,North\n",
        r"got 3 columns of other names, one of which differs only in capitals, blanks or punct",
    ),
    "no header, words": ("a.csv", b"Maria,1,North\n", r"got 3 columns of other names; name"),
    "no header": ("a.csv", b"Maria M,1,North\n", r"expected a column 'text', got 3 columns of"),
    "separator": ("a.csv", b"text|label|site\nMaria|1|N\n", r"column 'text', got 1 columns of"),
    "column twice": ("a.csv", b"text,text,label,site\n", r"the column 'text' occurs 2 times"),
    "ragged": (
        "a.csv",
        b"text,label,site\nMaria, 63,no,North\n",
        r"line 2: expected 3 fields as in the header, got 4",
    ),
    "open quote": (
        "a.csv",
        b'text,label,site\n"Maria,no,North\n',
        r"line 2: the quotes of a field",
    ),
    "empty file": ("a.csv", b"", r"expected a column 'text', got no columns"),
    "empty text": ("a.csv", b"text,label,site\n ,no,North\n", r"site North: .*'text', row 1: exp"),
    "empty label": ("a.csv", b"text,label,site\nMaria,,North\n", r"'label', row 1:.*got nothing"),
    "empty site": ("a.csv", b"text,label,site\nMaria,no,\n", r"'site', row 1:.*got nothing"),
    "text as site": (
        "a.csv",
        b"text,label,site\nx,no," + b"Maria was here " * 9 + b"\n",
        r"'site', row 1:.*got a value of 134 characters",
    ),
    "not json": ("a.jsonl", JSON.encode() + b"{Maria\n", r"line 2: not JSON; expected one"),
    "json nesting": ("a.jsonl", b"[" * 100000, r"line 1: not JSON"),
    "json number": ("a.jsonl", b'{"label": ' + b"9" * 5000 + b"}", r"line 1: not JSON"),
    "json list": ("a.jsonl", b'["Maria"]\n', r"line 1: expected a JSON object, got list"),
    "json key": (
        "a.jsonl",
        JSON.encode() + b'{"text": "Maria"}',
        r"line 2: expected a column 'lab",
    ),
    "json key twice": (
        "a.jsonl",
        JSON.encode() + b'{"text":"Maria","text":"x","label":1,"site":"N"}',
        r"line 2: a key occurs twice in one object",
    ),
    "no site": (
        "a.jsonl",
        b'{"text":"Maria","label":1}',
        r"column 'site', got 2 columns .* and data.site-column, or set data.partition to iid or",
    ),
    "json type": (
        "a.jsonl",
        b'{"text":["Maria"],"label":1,"site":"N"}',
        r"expected text, got a li",
    ),
    "json label": ("a.jsonl", b'{"text":"Maria","label":1.5,"site":"N"}', r"whole number\), got a"),
    "json null": ("a.jsonl", b'{"text":"Maria","label":null,"site":"N"}', r"got nothing"),
    "surrogate": ("a.jsonl", rb'{"text":"Maria\ud800","label":1,"site":"N"}', r"surrogate pair"),
    "surrogate label": (
        "a.jsonl",
        rb'{"text":"x","label":"Maria\ud800","site":"N"}',
        r"site N: a.jsonl, column 'label', row 1: half of a Unicode surrogate pair",
    ),
    "not parquet": ("a.parquet", b"Maria, 63", r"not a readable Parquet file"),
    "unknown kind": ("a.xlsx", b"Maria", r"expected a file ending in .csv, .*got '.xlsx'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_without_content(case: str, tmp_path: Path) -> None:
    name, content, message = BAD[case]
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / name)

    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_missing_file_is_named_and_its_folder_only_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=r"data file not found: nothing\.csv; check"):
        read(Path("nothing.csv"))

    assert f"{tmp_path}/nothing.csv" in caplog.text


def test_a_path_of_nobody_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="'~nosuchuser', but no account of that name"):
        read(Path("~nosuchuser/a.csv"))


def test_the_columns_of_a_file_are_only_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("note,label,site\nFever,1,North\n")

    with pytest.raises(DataError):
        read(tmp_path / "a.csv")

    assert f"{tmp_path}/a.csv has the columns 'note', 'label', 'site'" in caplog.text


def test_a_parquet_file_without_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"txt": ["Maria"], "label": [1]}), tmp_path / "a.parquet")

    with pytest.raises(DataError, match=r"expected a column 'text', got 2 columns of"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("column", ["text", "label", "site"])
def test_a_parquet_file_with_text_in_another_encoding(column: str, tmp_path: Path) -> None:
    columns = {"text": ["Maria"], "label": ["yes"], "site": ["North"]}
    arrays = {name: pa.array(values) for name, values in columns.items()}
    latin = pa.array(["Müller".encode("latin-1")], pa.binary())
    arrays[column] = pa.Array.from_buffers(pa.string(), 1, latin.buffers())
    pq.write_table(pa.table(arrays), tmp_path / "a.parquet")

    with pytest.raises(
        DataError, match=r"a\.parquet: a text column holds bytes that are not UTF-8"
    ):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ""])
def test_a_pipe_is_refused_at_once(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")

    with pytest.raises(DataError, match=r"pipe\S* is neither a file nor a folder"):
        read(tmp_path / f"pipe{suffix}")


def test_a_file_with_old_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text;label;site\rFever;yes;North\rWell;no;North\r")

    assert read(tmp_path / "a.csv").contents == ["Fever", "Well"]


def test_a_folder_that_datasets_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{Maria")

    with pytest.raises(DataError, match="is not a folder written by `datasets`"):
        read(tmp_path)


def test_an_unknown_class_in_a_folder(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_dict({"text": ["a"], "label": [-1]}, features).save_to_disk(tmp_path / "folder")

    with pytest.raises(DataError, match=r"'label', row 1:.*got nothing"):
        read(tmp_path / "folder", partition="iid")


def test_a_very_long_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text,label,site\n{'x ' * 200_000},1,N\n")

    assert len(read(tmp_path / "a.csv").contents[0]) == 400_000


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_the_separator_is_the_one_under_which_the_header_names_the_columns(
    separator: str, suffix: str, tmp_path: Path
) -> None:
    rows = [["text", "label", "site"], ["Fever, high; long", "yes", "North"], ["Well", "no", "N"]]
    quoted = [[f'"{cell}"' for cell in row] for row in rows]
    path = tmp_path / f"a{suffix}"
    path.write_bytes("\r\n".join(separator.join(row) for row in quoted).encode("utf-8-sig"))

    table = read(path)

    assert table.contents == ["Fever, high; long", "Well"]
    assert table.strata == ["yes", "no"]
