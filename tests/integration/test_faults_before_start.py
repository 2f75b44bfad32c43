"""Faults that `fedapp run` finds before it starts Flower: one sentence, and nothing is touched."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest
from desk import Desk
from interface import ROOT
from verdicts import assert_one_sentence, contents

from fedapp.config import RunConfig
from fedapp.results import RunFolder

# name -> (arguments, exit code, words of the sentence)
FAULTS: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "unknown key": (
        ["-c", "trian.batch-size=8"],
        *(2, ("unknown setting 'trian.batch-size'", "did you mean 'train.batch-size'?")),
    ),
    "unknown key in a file": (
        ["-c", "unknown.toml"],
        *(2, ("unknown setting 'federation.round'", "did you mean 'federation.rounds'?")),
    ),
    "unknown method": (["--method", "fedavq"], 2, ("'fedavq'", "did you mean 'fedavg'?")),
    "value below its range": (
        ["-c", "train.batch-size=0"],
        *(2, ("setting 'train.batch-size'", "greater than or equal to 1", "got 0")),
    ),
    "value above its range": (
        ["-c", "lora.rank=5000"],
        *(2, ("setting 'lora.rank'", "less than or equal to 1024", "got 5000")),
    ),
    "value of another type": (
        ["-c", "train.batch-size=many"],
        *(2, ("setting 'train.batch-size'", "valid integer", "got 'many'")),
    ),
    "true for a number": (
        ["-c", "federation.rounds=true"],
        *(2, ("setting 'federation.rounds'", "expected a number", "got True")),
    ),
    "a number for true": (
        ["-c", "train.tf32=1"],
        *(2, ("setting 'train.tf32'", "expected true or false", "got 1")),
    ),
    "no number at all": (
        ["-c", "train.learning-rate=nan"],
        *(2, ("setting 'train.learning-rate'", "finite number", "got nan")),
    ),
    "settings that contradict each other": (
        ["-c", "data.test-fraction=0.8 data.validation-fraction=0.5"],
        *(2, ("data.validation-fraction + data.test-fraction must stay below 1", "0.5 + 0.8")),
    ),
    "no settings file": (["-c", "absent.toml"], 2, ("settings file not found", "absent.toml")),
    "settings file that is no TOML": (["-c", "bad.toml"], 2, ("bad.toml cannot be read",)),
    "NUL in a path": (["-c", "nul.toml"], 2, ("NUL character", r"a\x00b.csv")),
    "output of nobody": (
        ["--output-dir", "~nosuchuser/x"],
        *(2, ("'~nosuchuser/x'", "no account of that name")),
    ),
    "output in a file": (
        ["--output-dir", "bad.toml/x"],
        *(2, ("bad.toml/x for run folders cannot be created", "another --output-dir")),
    ),
    "a taken name": (["--name", "done"], 2, ("runs/done exists", "another --name", "--resume")),
    "missing data file": (
        ["-c", "data.source=nowhere/notes.csv"],
        *(3, ("data file not found", "nowhere/notes.csv", "check data.source")),
    ),
    "resume of nobody's": (["--resume", "~nosuchuser"], 2, ("no account of that name",)),
    "resume of nothing": (["--resume", "empty"], 6, ("is not the folder of a run",)),
    "resume without its settings": (["--resume", "runs/cut"], 6, ("config.json cannot be read",)),
    "resume with a link for its adapter": (
        ["--resume", "runs/linked"],
        *(6, ("runs/linked/adapter is a link, expected a folder or nothing", "move it away")),
    ),
    "resume with a file for its adapter": (
        ["--resume", "runs/blocked"],
        *(6, ("runs/blocked/adapter is a file, expected a folder or nothing", "move it away")),
    ),
}


class Ended(NamedTuple):
    """How every command ended, and what was in its directory before."""

    desk: Desk
    done: dict[str, subprocess.CompletedProcess[str]]
    before: dict[str, str]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Run the commands, four at a time."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    here = desk.here
    for name in ("done", "cut", "linked", "blocked"):
        config = RunConfig.from_flat({"output-dir": str(here / "runs"), "name": name})
        RunFolder.create(config).write_status("completed", run_id=1)
    (here / "runs/cut/config.json").write_text('{"settings": ')
    (here / "elsewhere").mkdir()
    (here / "runs/linked/adapter").symlink_to(here / "elsewhere")
    (here / "runs/blocked/adapter").write_text("mine")
    (here / "empty").mkdir()
    (here / "bad.toml").write_text("rounds = = 3\n")
    (here / "unknown.toml").write_text("[federation]\nround = 3\n")
    (here / "nul.toml").write_text('data.source = "a\\u0000b.csv"\n')
    before = contents(here)
    waiting, done = list(FAULTS), {}
    while waiting:
        started = {name: desk.start("run", ROOT, *FAULTS[name][0]) for name in waiting[:4]}
        waiting = waiting[4:]
        for name, process in started.items():
            output, errors = process.communicate(timeout=120)
            done[name] = subprocess.CompletedProcess(name, process.returncode, output, errors)
    return Ended(desk, done, before)


@pytest.mark.parametrize("name", FAULTS)
def test_one_sentence_and_the_right_exit_code(ended: Ended, name: str) -> None:
    _, code, words = FAULTS[name]
    assert_one_sentence(ended.done[name], code, *words)
    assert ended.done[name].stdout == ""


def test_nothing_is_touched_and_no_daemon_is_started(ended: Ended) -> None:
    assert contents(ended.desk.here) == ended.before
    assert not list(ended.desk.home.glob(".fedapp/projects/*/daemon.json"))
