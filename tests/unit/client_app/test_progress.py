"""Progress lines: their keys, their pace, and that a bad path costs nothing but the display."""

import json
import os

from client_app import progress
from client_app.progress import Progress
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction


def make(path):
    return Progress(Instruction(Action.TRAIN, "a", RunConfig(), 3, progress_file=str(path)))


def test_a_line_has_the_agreed_keys(tmp_path):
    report = make(tmp_path / "p.jsonl")
    report.base_loads = 1

    report(1, 9, 0.25)

    event = json.loads((tmp_path / "p.jsonl").read_text())
    assert event.pop("time") > 1e9
    assert (event.pop("process"), event.pop("base_loads")) == (os.getpid(), 1)
    expected = {"site": "a", "round": 3, "action": "train", "step": 1, "steps": 9, "loss": 0.25}
    assert event == expected


def test_at_most_two_a_second_but_always_first_and_last(tmp_path, monkeypatch):
    clock = iter(x * 0.2 for x in range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    report = make(tmp_path / "p.jsonl")

    for step in range(1, 11):
        report(step, 10, 0.0)

    steps = [json.loads(line)["step"] for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert steps == [1, 4, 7, 10]


def test_sites_share_one_file_and_earlier_lines_stay(tmp_path):
    make(tmp_path / "p.jsonl")(1, 2, 0.0)
    make(tmp_path / "p.jsonl")(1, 2, 0.0)

    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 2


def test_an_unwritable_file_is_logged_once_and_ignored(tmp_path, caplog):
    report = make(tmp_path / "missing" / "p.jsonl")

    for step in (1, 2):
        report(step, 2, 0.0)

    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_without_a_file_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    make("")(1, 1, 0.0)

    assert list(tmp_path.iterdir()) == []
