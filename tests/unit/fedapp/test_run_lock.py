from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedapp import run_lock
from fedapp.errors import CheckpointError
from fedapp.run_lock import RunLock, is_held

HOLD = """
import sys
from pathlib import Path
from fedapp.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_who_holds_a_folder_holds_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_PATIENCE", 0.1)
    assert is_held(tmp_path) is False
    lock = RunLock(tmp_path)
    assert is_held(tmp_path) is True

    with pytest.raises(CheckpointError, match=f"the run {tmp_path} is in progress in another"):
        RunLock(tmp_path)

    lock.release()
    assert is_held(tmp_path) is False
    RunLock(tmp_path).release()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert is_held(tmp_path) is True

    process.kill()
    process.communicate()

    assert is_held(tmp_path) is False


def test_a_glance_from_outside_does_not_keep_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(handle, fcntl.LOCK_UN))

    lock = RunLock(tmp_path)

    assert is_held(tmp_path) is True
    lock.release()
    os.close(handle)


def test_without_locks_nothing_is_held_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    RunLock(tmp_path).release()

    assert is_held(tmp_path) is None
    assert is_held(tmp_path / "absent") is None
