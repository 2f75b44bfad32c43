"""The ledger of a node: what it keeps, whose it is, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedapp.errors import LedgerError
from fedapp.gossip.ledger import Heard, Ledger, LedgerEntry, newest, read_ledger
from fedapp.gossip.traffic import Traffic
from fedapp.hash_chain import HashChain

A, B = "a" * 64, "b" * 64
GOOD = Heard(
    origin="Kiel", via="Bern", digest=A, size=10, scores={"agreement": 0.9}, accepted=True,
    weight=0.25,
)  # fmt: skip
BAD = Heard(origin="Graz", accepted=False, reason="its signature is of other content")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger" / "Bern.jsonl"


def test_a_round_is_kept_as_it_was(path: Path) -> None:
    ledger = Ledger(path, "run-1", "Bern")
    traffic = Traffic(1, 2, 3, 4, 5, 6, 7)
    entry = ledger.record(
        1, [GOOD, BAD], time=12.5, missing=["Ulm", "Linz"], own_digest=B, own_weight=0.75,
        traffic=traffic,
    )  # fmt: skip

    assert entry == LedgerEntry(
        run="run-1", node="Bern", round=1, time=12.5, own_digest=B, own_weight=0.75,
        heard=(BAD, GOOD), missing=("Linz", "Ulm"), traffic=traffic,
    )  # fmt: skip
    assert ledger.entries() == read_ledger(path) == [entry]
    assert ledger.length == 1
    ledger.close()


def test_it_goes_on_after_a_restart_and_the_newest_entry_of_a_round_counts(path: Path) -> None:
    first = Ledger(path, "run-1", "Bern")
    first.record(1, [BAD], time=1)
    first.record(2, [BAD], time=2)
    head = first.head
    first.close()
    again = Ledger(path, "run-1", "Bern")
    assert again.head == head

    again.record(2, [GOOD], time=3)

    assert [entry.round for entry in again.entries()] == [1, 2, 2]
    assert [(entry.round, entry.time) for entry in newest(again.entries())] == [(1, 1), (2, 3)]
    again.close()


@pytest.mark.parametrize(("run", "node"), [("run-2", "Bern"), ("run-1", "Kiel")])
def test_the_ledger_of_something_else_is_refused(path: Path, run: str, node: str) -> None:
    ledger = Ledger(path, "run-1", "Bern")
    ledger.record(1, [], time=1)
    ledger.close()
    before = path.read_bytes()

    with pytest.raises(LedgerError, match=r"line 1, is of (run|node) '.*', expected"):
        Ledger(path, run, node)
    assert path.read_bytes() == before
    Ledger(path, "run-1", "Bern").close()  # the refusal held no lock


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": -1}, "field 'round'.*got -1"),
        ({"own_weight": 1.5}, "field 'own_weight'.*got 1.5"),
        ({"own_digest": "abc"}, "field 'own_digest'.*got 'abc'"),
        ({"time": float("nan")}, "field 'time'.*got nan"),
        ({"missing": ["a\nb"]}, "field 'missing.0'"),
    ],
)
def test_what_cannot_be_is_not_written(path: Path, change: dict[str, Any], words: str) -> None:
    ledger = Ledger(path, "run-1", "Bern")
    with pytest.raises(LedgerError, match=words):
        ledger.record(**{"round": 1, "heard": [], "time": 1.0, **change})
    assert ledger.length == 0
    ledger.close()


@pytest.mark.parametrize("change", [{"unknown": 1}, {"heard": [{"origin": "x"}]}, {"time": None}])
def test_a_line_of_another_version_is_named(path: Path, change: dict[str, Any]) -> None:
    good = LedgerEntry(run="run-1", node="Bern", round=1, time=1.0).model_dump(mode="json")
    chain = HashChain(path)
    chain.append(good)
    chain.append({**good, **change})
    chain.close()

    with pytest.raises(LedgerError, match=r"Bern\.jsonl, line 2, is no entry of a gossip ledger"):
        read_ledger(path)
    with pytest.raises(LedgerError, match="line 2"):
        Ledger(path, "run-1", "Bern")
