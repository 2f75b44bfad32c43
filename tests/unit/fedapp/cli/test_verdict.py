from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedapp.cli.flower import Run
from fedapp.cli.verdict import Verdict, judge

LOG = Path("/logs/x.log")


def status(
    folder: Path, state: str, error: str | None = None, code: int = 0, run_id: int = 7
) -> None:
    text = json.dumps({"state": state, "error": error, "exit_code": code, "run_id": run_id})
    (folder / "status.json").write_text(text)


def test_completed_needs_both_views(tmp_path: Path) -> None:
    status(tmp_path, "completed")
    assert judge(Run("7", "finished:completed", ""), tmp_path, LOG).exit_code == 0


@pytest.mark.parametrize("state", ["running", None])
def test_flowers_completed_alone_is_not_believed(tmp_path: Path, state: str | None) -> None:
    if state:
        status(tmp_path, state)
    verdict = judge(Run("7", "finished:completed", ""), tmp_path, LOG)
    assert verdict.exit_code == 1
    assert "without completing" in verdict.error


def test_the_folder_of_another_run_counts_for_nothing(tmp_path: Path) -> None:
    status(tmp_path, "completed", run_id=6)
    assert judge(Run("7", "finished:completed", ""), tmp_path, LOG).exit_code == 1


def test_a_completed_folder_does_not_outvote_flower(tmp_path: Path) -> None:
    status(tmp_path, "completed")
    assert judge(Run("7", "finished:failed", "late crash"), tmp_path, LOG).exit_code == 1


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6])
def test_a_failure_keeps_its_sentence_and_exit_code(tmp_path: Path, code: int) -> None:
    status(tmp_path, "failed", "site A, round 2: no", code)
    verdict = judge(Run("7", "finished:failed", "Simulation failed"), tmp_path, LOG)
    assert (verdict.exit_code, verdict.error) == (code, "site A, round 2: no")


def test_a_process_that_was_killed_is_told_as_such(tmp_path: Path) -> None:
    status(tmp_path, "running")
    run = Run("7", "finished:failed", "No heartbeat received from the task")

    verdict = judge(run, tmp_path, LOG)

    assert verdict.exit_code == 1
    assert verdict.error.startswith("the run's process was killed")


def test_a_refused_resumption_of_a_completed_run_is_a_failure_of_this_command(
    tmp_path: Path,
) -> None:
    completed = {"state": "completed", "error": None, "exit_code": 0, "run_id": 6}
    refused = {"error": "other settings", "exit_code": 6, "run_id": 7}
    (tmp_path / "status.json").write_text(json.dumps({**completed, "refused": refused}))

    verdict = judge(Run("7", "finished:failed", "Simulation failed"), tmp_path, LOG)
    assert (verdict.exit_code, verdict.error) == (6, "other settings")
    later = judge(Run("8", "finished:failed", "crash"), tmp_path, LOG)
    assert later.exit_code == 1


@pytest.mark.parametrize("code", [0, 300, None, "x"])
def test_a_failure_is_never_exit_code_0(tmp_path: Path, code: object) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"state": "failed", "exit_code": code}))
    assert judge(Run("7", "finished:completed", ""), tmp_path, LOG).exit_code == 1


def test_a_crash_before_the_folder_exists_is_told_by_flower(tmp_path: Path) -> None:
    run = Run("7", "finished:failed", "Simulation failed with exception: no such thing")
    verdict = judge(run, tmp_path / "absent", LOG)
    assert verdict.exit_code == 1
    assert verdict.error.startswith("no such thing")
    assert str(LOG) in verdict.error


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "[" * 100_000, '{"run_id": [7]}', '{"state": [], "run_id": 7}'],
    ids=range(7),
)
def test_a_broken_status_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    assert judge(Run("7", "finished:completed", ""), tmp_path, LOG).exit_code == 1


def test_what_the_folder_says_is_one_line(tmp_path: Path) -> None:
    status(tmp_path, "failed", "site A:\x1b[2J\nnext: all is well" + "x" * 10_000, 4)
    error = judge(Run("7", "finished:failed", ""), tmp_path, LOG).error
    assert error.startswith(r"site A:\x1b[2J\nnext: all is well")
    assert len(error) == 5000
    (tmp_path / "status.json").write_text('{"state": "failed", "error": [1], "run_id": 7}')
    assert judge(Run("7", "finished:failed", ""), tmp_path, LOG).error == (
        f"the run failed; see {LOG}"
    )


def test_a_ray_that_starts_late_is_told_as_such_and_may_be_tried_again(tmp_path: Path) -> None:
    status(tmp_path, "running")
    late = "The current node timed out during startup. This could happen because some of the ..."

    verdict = judge(Run("7", "finished:failed", late), tmp_path, LOG)

    assert (verdict.exit_code, verdict.begun) == (1, False)
    assert verdict.error.startswith("Ray, which runs the sites, did not start within the 30 s")
    assert judge(Run("7", "finished:failed", "another\nreason"), tmp_path, LOG) == Verdict(
        1, f"another reason (full output: {LOG})"
    )


def test_stopped_is_130(tmp_path: Path) -> None:
    status(tmp_path, "running")
    assert judge(Run("7", "finished:stopped", ""), tmp_path, LOG).exit_code == 130
