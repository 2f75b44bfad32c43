"""How ``fedapp run`` ends: the report belongs to the results, and never changes the exit code."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
import typer

from fedapp.cli.daemon import Daemon
from fedapp.cli.flower import Run
from fedapp.cli.home import Home
from fedapp.cli.process import Process
from fedapp.cli.run import _conclude, _mark_ended
from fedapp.cli.session import Request
from fedapp.cli.verdict import Verdict
from fedapp.config import RunConfig
from fedapp.results import RunFolder

module = importlib.import_module("fedapp.cli.run")  # the package's own `run` is the command
FRESH, OLD, OLDER = 3000, 2000, 1000  # seconds, times of files
LATE = Verdict(1, "Ray was late", begun=False)


def folder_with(tmp_path: Path, **times: int) -> Path:
    for name, when in times.items():
        path = tmp_path / name.replace("_", ".")
        path.write_text("before")
        os.utime(path, (when, when))
    return tmp_path


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the writing of the report; returns the folders it was asked for."""
    asked: list[Path] = []
    monkeypatch.setattr(module, "write_report", asked.append)
    return asked


@pytest.mark.parametrize(
    ("times", "written"),
    [
        ({"summary_json": OLD, "metrics_jsonl": OLD}, True),
        ({"report_html": FRESH, "summary_json": OLD, "metrics_jsonl": OLD}, False),
        ({"report_html": OLDER, "summary_json": OLD, "metrics_jsonl": OLD}, True),
        ({"report_html": OLD, "summary_json": OLDER, "metrics_jsonl": FRESH}, True),
        ({"report_html": OLD}, False),
    ],
    ids=["missing", "fresh", "before the summary", "before the metrics", "alone"],
)
def test_a_report_older_than_the_results_is_rewritten(
    times: dict[str, int], written: bool, tmp_path: Path, write: list[Path]
) -> None:
    _conclude(Verdict(0), folder_with(tmp_path, **times))

    assert write == ([tmp_path] if written else [])


@pytest.mark.parametrize(
    ("times", "written"),
    [({"metrics_jsonl": OLD}, False), ({"report_html": OLDER, "metrics_jsonl": OLD}, True)],
    ids=["none", "of before the resumption"],
)
def test_after_a_failure_only_an_old_report_is_rewritten(
    times: dict[str, int], written: bool, tmp_path: Path, write: list[Path]
) -> None:
    with pytest.raises(typer.Exit) as caught:
        _conclude(Verdict(4, "refused"), folder_with(tmp_path, **times))

    assert caught.value.exit_code == 4
    assert write == ([tmp_path] if written else [])


def test_a_run_that_fell_with_flower_is_not_running_any_more(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin_status(7)
    _mark_ended(tmp_path, "8", Verdict(1, "of another run"), "failed")
    assert folder.read_status()["state"] == "running"

    _mark_ended(tmp_path, "7", Verdict(1, "Ray did not start"), "failed")
    failed = {"state": "failed", "error": "Ray did not start", "exit_code": 1, "run_id": 7}
    assert folder.read_status() == failed

    _mark_ended(tmp_path, "7", Verdict(1, "later"), "failed")  # it has said itself how it ended
    assert folder.read_status() == failed


@pytest.mark.parametrize(
    ("verdicts", "attempts"),
    [([Verdict(0)], 1), ([LATE, Verdict(0)], 2), ([LATE, LATE], 2), ([Verdict(1, "no")], 1)],
)
def test_a_run_that_has_not_begun_is_tried_once_more(
    verdicts: list[Verdict],
    attempts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first attempt must leave nothing that keeps the second from the run's folder."""
    waiting, ended, home = list(verdicts), list[Home](), Home(tmp_path)

    class Attempt:
        run_id = "7"

        def __init__(self, *arguments: object) -> None: ...

        def execute(self) -> Run:
            RunFolder.create(RunConfig(name="one", output_dir=str(tmp_path))).begin_status(7)
            return Run("7", "", "")

    monkeypatch.setattr(module.session, "Session", Attempt)
    monkeypatch.setattr(module, "judge", lambda *arguments: waiting.pop(0))
    monkeypatch.setattr(module.daemon, "end_ray", ended.append)
    monkeypatch.setattr(module.daemon, "ensure", lambda home: (Daemon(Process(1, ""), 1, ""), True))
    request = Request(tmp_path, tmp_path / "o.toml", "", tmp_path / "log")

    assert module._execute(home, request, tmp_path / "one") == verdicts[-1]

    assert waiting == []
    assert ended == [home] * (attempts - 1)
    output = capsys.readouterr()
    assert output.out.count("tried once more") == attempts - 1
    assert output.err == ""  # which is for how the run ends


def test_a_report_that_fails_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> Path:
        raise ValueError("no fonts")

    monkeypatch.setattr(module, "write_report", fail)

    _conclude(Verdict(0), folder_with(tmp_path, summary_json=OLD))

    output = capsys.readouterr()
    assert output.err.startswith("warning: the report was not written (ValueError: no fonts)")
    assert f"`fedapp report {tmp_path}`" in output.err
    assert f"Results: {tmp_path}" in output.out
