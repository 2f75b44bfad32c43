"""Nothing of a record is in a message that leaves the site, whatever is wrong with the data.

Text, label, site and folder of every bad file are one word. It must not come back: neither from the
sources, nor from a deployed site as a whole.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from client_app import hosting
from client_app.data import load_sites
from client_app.data.schemas.classification import ClassificationSchema
from client_app.data.sources import read_table
from client_app.data.sources.files import read_files
from client_app.hosting import hosted_sites
from fedapp.config import RunConfig
from fedapp.errors import DataError, FedappError
from fedapp.exchange import Action, Instruction

WORD = "Muster"  # short and made of letters: looks like a label, a site and a column
GOOD = [("Muster %d has a fever", "well" if i % 2 else "ill", "North") for i in range(20)]
GOOD = [(text % i, label, site) for i, (text, label, site) in enumerate(GOOD)]


def csv(*rows: tuple[str, str, str], header: str = "text,label,site") -> bytes:
    lines = [header, *('"{}","{}","{}"'.format(*row) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def jsonl(*records: object) -> bytes:
    return "\n".join(json.dumps(record) for record in records).encode()


def parquet(path: Path) -> None:
    pq.write_table(pa.table({WORD: [WORD], "label": ["well"]}), path)


def datasets_folder(path: Path) -> None:
    Dataset.from_dict({WORD: [WORD], "label": ["well"]}).save_to_disk(path)


# Of a file: its name, and its content or what writes it.
UNREADABLE = {
    "no such file": ("nothing.csv", None),
    "unknown kind": ("a.xlsx", WORD.encode()),
    "not UTF-8": ("a.csv", csv((WORD, WORD, WORD)) + "Müller".encode("latin-1")),
    "no header": ("a.csv", b"Muster,Muster,North\n"),
    "other columns": ("a.csv", csv(*GOOD, header="Muster,TEXT,label")),
    "column twice": ("a.csv", b"text,text,label,site\nMuster,Muster,Muster,Muster\n"),
    "ragged": ("a.csv", csv() + b"Muster, Maria,Muster,Muster\n"),
    "open quote": ("a.csv", csv() + b'"Muster,Muster,Muster\n'),
    "no text": ("a.csv", csv(("", WORD, WORD))),
    "no label": ("a.csv", csv((WORD, "", WORD))),
    "no site": ("a.csv", csv((WORD, WORD, ""))),
    "text as site": ("a.csv", csv((WORD, WORD, WORD * 20))),
    "tab in site": ("a.csv", csv((WORD, WORD, f"{WORD}\t1"))),
    "not JSON": ("a.jsonl", b"{Muster"),
    "no object": ("a.jsonl", jsonl([WORD])),
    "other keys": ("a.jsonl", jsonl({WORD: WORD, "label": WORD, "site": WORD})),
    "text of parts": ("a.jsonl", jsonl({"text": [WORD], "label": WORD, "site": WORD})),
    "label of parts": ("a.jsonl", jsonl({"text": WORD, "label": {WORD: 1}, "site": WORD})),
    "site of parts": ("a.jsonl", jsonl({"text": WORD, "label": WORD, "site": [WORD]})),
    "surrogate": ("a.jsonl", jsonl({"text": f"{WORD}\ud800", "label": WORD, "site": WORD})),
    "not Parquet": ("a.parquet", WORD.encode()),
    "Parquet of other columns": ("a.parquet", parquet),
    "no datasets folder": ("a.jsonl/", None),
    "datasets folder of other columns": ("folder", datasets_folder),
}
UNUSABLE = {
    "no records": ("a.csv", csv(), {}),
    "one label": ("a.csv", csv(*[(f"{WORD} {i}", WORD, "North") for i in range(20)]), {}),
    "label not named": ("a.csv", csv(*GOOD, ("x", WORD, "North")), {}),
    "label with a comma": ("a.csv", csv(*GOOD, ("x", f"{WORD}, ill", "North")), {}),
    "text of another site": ("a.csv", csv(*GOOD, ("", "ill", WORD)), {}),
    "labels not named": ("a.csv", csv(*GOOD, ("x", WORD, "North")), {"data.labels": ""}),
    "only other sites": ("a.csv", csv(*[(t, y, f"{WORD} {t}") for t, y, _ in GOOD]), {}),
    "held-out comma": (
        "a.csv",
        csv(*GOOD, ("x", "ill", f"{WORD}, b")),
        {"federation.held-out": f"{WORD},b"},
    ),
    "repeats": ("a.csv", csv(*GOOD, GOOD[0], GOOD[1]), {"data.duplicates": "refuse"}),
    "repeats of another site": (
        "a.csv",
        csv(*[(t, y, WORD) for t, y, _ in GOOD], *GOOD),
        {"data.duplicates": "drop"},
    ),
    "one class": ("a.csv", csv(*[(t, "ill", "North") for t, _, _ in GOOD]), {}),
    "too few": ("a.csv", csv(*GOOD[:2]), {}),
    "too few to deal": ("a.csv", csv(*GOOD), {"data.partition": "iid", "data.sites": 50}),
    "too skewed to deal": (
        "a.csv",
        csv(*GOOD),
        {"data.partition": "dirichlet", "data.sites": 10},
    ),
    "no model": ("a.csv", csv(*GOOD), {"model.source": "/home/Muster/model"}),
}


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_SITES", {})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / WORD
    folder.mkdir()
    return folder


def settings(path: Path, **changes: object) -> RunConfig:
    return RunConfig.from_flat(
        {
            "data.source": str(path),
            "data.labels": "ill,well",
            "model.source": "embedded:tiny-encoder",
            **changes,  # type: ignore[dict-item]
        }
    )


def put(home: Path, name: str, content: object) -> Path:
    path = home / name
    if name.endswith("/"):
        path.mkdir()
    elif callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_source_that_cannot_be_read_tells_nothing_of_its_records(case: str, home: Path) -> None:
    config = settings(put(home, *UNREADABLE[case]))

    with pytest.raises(DataError) as caught:
        read_table(config)

    assert WORD not in caught.value.message
    assert len(caught.value.message) > 20


@pytest.mark.parametrize("case", [*UNREADABLE, *UNUSABLE])
def test_a_deployed_site_tells_nothing_of_its_records(case: str, home: Path) -> None:
    name, content, *more = (UNREADABLE | UNUSABLE)[case]
    config = settings(put(home, name, content), **(more[0] if more else {}))

    reply = failure(config)

    assert WORD not in reply
    assert len(reply) > 20


def failure(config: RunConfig) -> str:
    """What the coordinator is told about site North."""
    try:
        site = hosted_sites(config, {"site": "North"})["North"]
    except FedappError as error:  # which the ClientApp answers with
        from client_app.failures import to_failure

        return to_failure(error, "North", 0).message
    reply = site.execute(Instruction(Action.DESCRIBE, "North", config))
    assert reply.failure is not None
    return reply.failure.message


FOUND = {  # with labels that are found, as a simulation may
    "one label": csv(*[(f"{WORD} {i}", WORD, WORD) for i in range(20)]),
    "a text as label": csv(*[("x", f"{WORD} {'x' * i}", WORD) for i in range(70)]),
    "many labels": csv(*[("x", f"{WORD} {i}", WORD) for i in range(101)]),
    "no record left": csv(*[(t, y, "A") for t, y, _ in GOOD], *[(t, y, WORD) for t, y, _ in GOOD]),
}


@pytest.mark.parametrize("case", FOUND)
def test_labels_that_cannot_be_found_are_not_told(case: str, home: Path) -> None:
    config = settings(put(home, "a.csv", FOUND[case]), **{"data.labels": ""})

    with pytest.raises(DataError) as caught:
        load_sites(config)

    assert WORD not in caught.value.message  # the prefix names the site of the simulation


def test_what_is_left_out_is_in_the_site_s_own_log(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = settings(put(home, *UNREADABLE["other columns"])).data
    with caplog.at_level(logging.WARNING), pytest.raises(DataError):
        read_files(data, ClassificationSchema(data))

    assert str(home / "a.csv") in caplog.text
    assert "'TEXT'" in caplog.text


def test_a_good_site_describes_itself_without_its_records(home: Path) -> None:
    config = settings(put(home, "a.csv", csv(*GOOD, (GOOD[0][0], "well", "North"))))

    site = hosted_sites(config, {"site": "North"})["North"]
    description = site.execute(Instruction(Action.DESCRIBE, "North", config)).description

    assert description["site"] == "North"
    assert WORD not in json.dumps(description)
