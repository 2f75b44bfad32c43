"""Random label columns and names: the same map everywhere, true indices, and bad ones by name."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.data import load_sites
from client_app.data.labels import resolve_label_map
from client_app.data.schemas.classification import labelled_texts
from client_app.data.table import Table
from fedapp.config import RunConfig
from fedapp.errors import DataError
from fedapp.text import clean, shown, site_name

EXAMPLES = settings(deadline=None, max_examples=60)
POOLS = [
    ["1", "2", "10", "-3", "007", "01", "0", "-0", "999999999999999999", "9" * 30],
    ["yes", "no", "Yes", "YES ", " no", "y e s", "y  e s"],
    ["é", "e\u0301", "ﬁ", "fi", "Ω", "\u2126", "ß", "ss", "İ", "i̇", "１", "1"],
    ["ill\n", "ill", "a\x00", "\u200b", "\u202ea", "a\u2028b", "\ud800", "\ufeffa", "\xa0"],
    ["x" * 64, "x" * 65, "patient " * 9, "", " ", "a,b", '"', "'", "<b>", "=1+1", "nan", "None"],
]
LABELS = st.one_of(*(st.sampled_from(pool) for pool in POOLS), st.text(min_size=1, max_size=5))


def hidden(text: str) -> bool:
    """Whether a text holds what moves a cursor, starts a line or is half of a character."""
    return any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in text)


def table(labels: list[str]) -> Table:
    return Table("notes.csv", labelled_texts(map(str, range(len(labels))), labels), None)


def outcome(labels: list[str]) -> Any:
    """The map, or the sentence of the refusal."""
    try:
        return resolve_label_map(table(labels), ())
    except DataError as error:
        sentence = str(error)
    assert sentence.isprintable()
    assert len(sentence) < 500
    return sentence


@EXAMPLES
@given(labels=st.lists(LABELS, min_size=1, max_size=12), data=st.data())
def test_the_order_of_the_rows_does_not_matter(labels: list[str], data: Any) -> None:
    assert outcome(labels) == outcome(data.draw(st.permutations(labels)))


@EXAMPLES
@given(labels=st.lists(LABELS, min_size=1, max_size=12))
def test_a_map_holds_every_label_once_and_none_that_is_mistaken(labels: list[str]) -> None:
    found = outcome(labels)

    if isinstance(found, str):
        return
    assert sorted(found) == sorted(set(labels))
    assert len({unicodedata.normalize("NFC", label).casefold().strip() for label in found}) == len(
        found
    )
    assert not any(hidden(label) for label in found)
    if all(label.lstrip("-").isdecimal() and label.isascii() for label in found):
        short = [int(label) for label in found if len(label) < 18]
        assert short == sorted(short) or len(short) < len(found)


def test_every_process_finds_the_same_map(tmp_path: Path) -> None:
    """Whatever the seed of Python's own hashes, which sets are ordered by."""
    rng = random.Random(0)
    columns = [
        [rng.choice(rng.choice(POOLS)) for _ in range(rng.randrange(1, 9))] for _ in range(400)
    ]
    path = tmp_path / "columns.json"
    path.write_text(json.dumps(columns))
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[2]); import test_label_maps as here; "
        "print(json.dumps([here.outcome(c) for c in json.load(open(sys.argv[1]))]))"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(path), str(Path(__file__).parent)]
    found = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        result = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        )
        found.append(result.stdout)

    assert found[0] == found[1]
    assert json.loads(found[0]) == [outcome(column) for column in columns]


def clear(label: str) -> bool:
    """Whether a label reads back from a file as it was written."""
    return clean(label, 99) == label and label.strip() == label and "," not in label


@settings(deadline=None, max_examples=15)
@given(
    labels=st.sets(LABELS.filter(clear), min_size=2, max_size=5),
    named=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_record_has_the_index_of_its_own_label(
    tmp_path_factory: pytest.TempPathFactory, labels: set[str], named: bool, seed: int
) -> None:
    rng, path = random.Random(seed), tmp_path_factory.mktemp("labels") / "d.csv"
    rows = [(f"note {number} {label}", label) for label in sorted(labels) for number in range(12)]
    rng.shuffle(rows)
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    wanted = ",".join(rng.sample(sorted(labels), len(labels))) if named else ""
    config = RunConfig.from_flat(
        {"data.source": str(path), "data.partition": "iid", "data.sites": 2, "data.labels": wanted}
    )

    try:
        sites = load_sites(config)
    except DataError:
        return
    true, seen = dict(rows), 0
    for site in sites.values():
        assert site.label_map == next(iter(sites.values())).label_map
        for record in [record for split in site.splits.values() for record in split]:
            assert site.label_map[record["label"]] == true[record["text"]]
            seen += 1
    assert seen == len(rows)
    if named:
        assert next(iter(sites.values())).label_map == wanted.split(",")


# ---- names and values that another machine chose -----------------------------------------------

ANY_TEXT = st.text(st.characters(), max_size=120) | st.sampled_from([t for p in POOLS for t in p])


@EXAMPLES
@given(text=ANY_TEXT, longest=st.integers(4, 200))
def test_foreign_text_is_shown_on_one_bounded_line(text: str, longest: int) -> None:
    for line in (clean(text, longest), shown(text, longest), shown([text]), shown({text: 1})):
        assert len(line) <= max(longest, 80)
        assert len(line.splitlines()) <= 1
        line.encode()
        assert not hidden(line)


@EXAMPLES
@given(text=ANY_TEXT)
def test_a_name_of_a_site_is_a_name_or_is_refused_in_plain_words(text: str) -> None:
    try:
        name = site_name(text)
    except ValueError as error:
        sentence = str(error)
    else:
        assert name == text == unicodedata.normalize("NFC", text)
        assert name.isprintable()
        assert 0 < len(name) <= 100
        return
    assert len(sentence) < 300
    sentence.encode()
