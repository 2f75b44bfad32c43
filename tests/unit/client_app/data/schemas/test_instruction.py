"""Rows of an instruction file: two ways to write the same, and every bad one a sentence."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from client_app.data import load_sites
from client_app.data.schemas.instruction import InstructionSchema
from client_app.data.sources.files import read_files
from client_app.data.sources.instructions import QUESTIONS
from client_app.data.table import Table
from client_app.data_digest import data_digest
from fedapp.config import DataSection, RunConfig
from fedapp.errors import ConfigError, DataError

SECRET = "Maria"
PAIRS = [{"prompt": "Is it high?", "response": "yes, 240"}, {"prompt": "", "response": ""}]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": row["response"]},
        ]
    }
    for row in PAIRS
]


def read(path: Path, **settings: Any) -> Table:
    data = DataSection(source=str(path), **{"partition": "iid", **settings})
    return read_files(data, InstructionSchema(data))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(f'"{v}"' for v in row.values()) for row in rows)]
        path.write_text("\n".join(lines))
    else:
        Dataset.from_list(rows).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "folder"])
def test_every_format_gives_the_same_records(name: str, tmp_path: Path) -> None:
    examples = read(write(tmp_path / name, PAIRS)).examples

    assert [example.fields for example in examples] == [
        {"messages": [{"role": "user", "content": row["prompt"]}], "response": row["response"]}
        for row in PAIRS
    ]
    assert [example.stratum for example in examples] == ["", ""]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "folder"])
def test_a_chat_of_two_turns_is_the_same_as_prompt_and_response(name: str, tmp_path: Path) -> None:
    pairs = read(write(tmp_path / "pairs.jsonl", PAIRS)).examples

    assert read(write(tmp_path / name, CHATS)).examples == pairs


@pytest.mark.parametrize("rows", [PAIRS, CHATS], ids=["pairs", "chats"])
def test_a_file_as_windows_writes_it(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", rows)
    windows = tmp_path / "windows.jsonl"
    windows.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")

    assert read(windows).examples == read(plain).examples


def test_a_long_chat_keeps_its_turns(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": text}
        for role, text in [
            ("system", "Be brief."),
            ("user", "BP?"),
            ("assistant", "140"),
            ("user", "High?"),
            ("assistant", "yes"),
        ]
    ]

    (example,) = read(write(tmp_path / "a.jsonl", [{"messages": turns}])).examples

    assert example.fields == {"messages": turns[:-1], "response": "yes"}


def test_columns_are_named_in_the_settings(tmp_path: Path) -> None:
    row = {"Q": "How old?", "A": "63", "kind": 7}
    path = write(tmp_path / "a.jsonl", [row])

    (example,) = read(path, prompt_column="Q", response_column="A", stratum_column="kind").examples

    assert example.fields["response"] == "63"
    assert example.stratum == "7"


def test_prompt_and_response_are_read_where_a_source_has_all_three(tmp_path: Path) -> None:
    both = [{**pair, **{"messages": []}} for pair in PAIRS]
    without = [{"prompt": "other", **chat} for chat in CHATS]

    expected = read(write(tmp_path / "pairs.jsonl", PAIRS)).examples
    assert read(write(tmp_path / "both.jsonl", both)).examples == expected
    assert read(write(tmp_path / "without.jsonl", without)).examples == expected


def test_the_whole_conversation_identifies_a_record(tmp_path: Path) -> None:
    rows = [
        {"prompt": "How old?", "response": "63"},
        {"prompt": " How  old?", "response": "63\n"},
        {"prompt": "How old?", "response": "64"},
        {"prompt": "How old? 63", "response": ""},
    ]

    contents = read(write(tmp_path / "a.jsonl", rows)).contents

    assert contents[0] == contents[1]
    assert len(set(contents)) == 3


def chat(*turns: Any) -> dict[str, Any]:
    return {"messages": list(turns)}


USER = {"role": "user", "content": SECRET}
SAYS = {"role": "assistant", "content": "yes"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no column": (
        {"question": SECRET},
        r"expected a column 'prompt', got 1 columns of other names; name your columns in "
        r"data\.prompt-column, data\.response-column \(or data\.messages-column\) and data\.site",
    ),
    "number": ({"prompt": SECRET, "response": 5}, "'response', row 1: expected text, got a int"),
    "null": ({"prompt": None, "response": SECRET}, "'prompt', row 1: expected text, got nothing"),
    "list": ({"prompt": [SECRET], "response": ""}, "'prompt', row 1: expected text, got a list"),
    "surrogate": ({"prompt": "x", "response": f"{SECRET}\ud800"}, "half of a Unicode surrogate"),
    "text for messages": (
        {"messages": SECRET},
        "'messages', row 1: expected a list of messages with role and content, got text; CSV can",
    ),
    "null messages": ({"messages": None}, "expected a list of messages .* got nothing"),
    "no messages": (chat(), "expected at least 2 messages, .* got none"),
    "one message": (chat(SAYS), "at least 2 messages, .* got 1 that the assistant ends"),
    "the user ends": (chat(USER, SAYS, USER), "the last one of the assistant, got 3 that the user"),
    "message as text": (chat(SECRET, SAYS), "message 1: expected an object with role and content"),
    "no content": (chat({"role": "user"}, SAYS), "message 1: .* got one without them"),
    "role": (chat({"role": SECRET, "content": ""}, SAYS), "message 1: expected a role of system"),
    "role of a kind": (chat({"role": 1, "content": ""}, SAYS), "message 1: .*, got a int"),
    "content": (chat({"role": "user", "content": 1}, SAYS), "message 1, content: expected text"),
}


def test_a_message_with_two_contents_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    turn = f'{{"role": "user", "content": "{SECRET}", "content": "other"}}'
    path.write_text(f'{{"messages": [{turn}, {json.dumps(SAYS)}]}}')

    with pytest.raises(DataError, match=r"a\.jsonl, line 1: a key occurs twice") as caught:
        read(path)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_one_sentence_without_content(case: str, tmp_path: Path) -> None:
    row, sentence = BAD[case]

    with pytest.raises(DataError, match=sentence) as caught:
        read(write(tmp_path / "a.jsonl", [row]))

    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def config(path: Path, **changes: Any) -> RunConfig:
    return RunConfig.from_flat({"data.source": str(path), "model.task": "causal-lm", **changes})


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [
        {"prompt": f"Question {i}?", "response": f"{i}", "site": "AB"[i % 2], "kind": i % 4}
        for i in range(80)
    ]
    return write(tmp_path / "q.jsonl", rows)


def test_sites_have_no_labels_and_disjoint_records(questions: Path) -> None:
    sites = load_sites(config(questions))

    assert [(site.label_map, site.task) for site in sites.values()] == [([], "causal-lm")] * 2
    answers = [r["response"] for s in sites.values() for part in s.splits.values() for r in part]
    assert sorted(map(int, answers)) == list(range(80))
    assert {name: len(part) for name, part in sites["A"].splits.items()} == {
        "train": 24,
        "validation": 8,
        "test": 8,
    }


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (0, r"q\.jsonl holds no records: expected at least 1; check data\.source"),
        (1, r"site A: the validation split is empty: .* got 0 of the site's 1; add records"),
    ],
)
def test_a_file_with_too_few_records_is_one_sentence(
    records: int, sentence: str, questions: Path
) -> None:
    lines = questions.read_text().splitlines(keepends=True)
    questions.write_text("".join(lines[:records]))

    with pytest.raises(DataError, match=sentence):
        load_sites(config(questions))


def test_dirichlet_and_splits_go_by_the_stratum(questions: Path) -> None:
    by_kind = {"data.stratum-column": "kind"}
    natural = load_sites(config(questions, **by_kind))
    for site in natural.values():
        kinds = [{int(r["response"]) % 4 for r in part} for part in site.splits.values()]
        assert kinds[0] == kinds[1] == kinds[2]
    dealt = {"data.partition": "dirichlet", "data.sites": 2, "data.dirichlet-alpha": 0.1}

    sites = load_sites(config(questions, **by_kind, **dealt))

    shares = [
        sum(int(r["response"]) % 4 == 0 for part in site.splits.values() for r in part)
        / sum(map(len, site.splits.values()))
        for site in sites.values()
    ]
    assert abs(shares[0] - shares[1]) > 0.2


def test_every_stratum_can_be_a_site_of_its_own(questions: Path) -> None:
    sites = load_sites(
        config(questions, **{"data.stratum-column": "kind", "data.partition": "stratum"})
    )

    assert list(sites) == ["0", "1", "2", "3"]
    for name, site in sites.items():
        answers = [int(r["response"]) for part in site.splits.values() for r in part]
        assert sorted(answers) == list(range(int(name), 80, 4))

    with pytest.raises(DataError, match=r"no strata .* data\.stratum-column"):
        load_sites(config(questions, **{"data.partition": "stratum"}))


def test_the_kinds_of_question_can_be_sites() -> None:
    flat = {"model.task": "causal-lm", "data.source": "embedded:instructions"}
    sites = load_sites(RunConfig.from_flat({**flat, "data.partition": "stratum"}))

    assert set(sites) == set(QUESTIONS)
    for kind, site in sites.items():
        records = [record for part in site.splits.values() for record in part]
        assert len(records) > 50
        question = QUESTIONS[kind][0]
        assert all(r["messages"][-1]["content"].endswith(question) for r in records)


def test_the_digest_sees_prompt_and_response(questions: Path) -> None:
    site = load_sites(config(questions))["A"]
    first = data_digest(site)
    record = site.splits["train"][0]

    for changed in ({"response": "other"}, {"messages": [{"role": "user", "content": "other"}]}):
        site.splits["train"][0] = {**record, **changed}
        assert data_digest(site) != first
    site.splits["train"][0] = record
    assert data_digest(site) == first


def test_a_source_for_another_task_is_one_sentence_with_the_fitting_ones() -> None:
    with pytest.raises(ConfigError, match=r"'embedded:heart', whose records are for sequence-cl.*"):
        load_sites(config(Path("embedded:heart")))
    with pytest.raises(ConfigError, match=r"set model.task to causal-lm, or data.source to embed"):
        load_sites(RunConfig.from_flat({"data.source": "embedded:instructions"}))


def test_labels_and_room_are_checked_with_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"data\.labels names labels, but model\.task is causal"):
        config(Path("x"), **{"data.labels": "a,b"})
    with pytest.raises(ConfigError, match=r"train\.generate-tokens must stay below model\.max-len"):
        config(Path("x"), **{"train.generate-tokens": 64, "model.max-length": 64})
