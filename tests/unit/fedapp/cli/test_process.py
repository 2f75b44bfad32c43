from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from begun import begun

from fedapp.cli.process import Process, end_all, wait_for_end, with_environment, working_in

STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
)
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN!r}])"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def test_a_running_process_is_recognised(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    assert process.alive
    assert Process(process.pid, process.started).alive


def test_another_process_with_the_same_pid_is_not_touched(
    sleeper: subprocess.Popen[bytes],
) -> None:
    impostor = Process(sleeper.pid, "12345 something else")

    assert not impostor.alive
    assert not impostor.terminate(1.0)
    impostor.send(signal.SIGKILL)

    assert sleeper.poll() is None


def test_an_ended_process_is_not_alive_even_before_it_is_collected(
    sleeper: subprocess.Popen[bytes],
) -> None:
    process = Process.of(sleeper.pid)
    sleeper.kill()  # a zombie until wait()

    assert wait_for_end([process], 5.0)
    assert not process.terminate(1.0)


def test_there_is_no_process_with_an_unused_pid() -> None:
    assert not Process.of(2**22 + 1).alive


def test_terminate_ends_the_whole_family_of_a_stubborn_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # the grandchild ignores SIGTERM from now on
    process = Process.of(child.pid)
    family = process.descendants()
    assert len(family) == 1

    started = time.monotonic()
    assert process.terminate(0.3)

    assert time.monotonic() - started < 30
    assert not any(member.alive for member in [process, *family])
    child.stdout.close()
    child.wait()


def test_waiting_ends_at_the_deadline(sleeper: subprocess.Popen[bytes]) -> None:
    assert not wait_for_end([Process.of(sleeper.pid)], 0.1)


def test_processes_are_found_by_their_environment() -> None:
    child = begun(subprocess.Popen(["sleep", "60"], env={"FEDAPP_TEST": "a=b c"}))
    try:
        assert with_environment("FEDAPP_TEST", "a=b c") == [Process.of(child.pid)]
        assert with_environment("FEDAPP_TEST", "a=b") == []
        assert Process.of(child.pid).command() == "sleep 60"
    finally:
        child.kill()
        child.wait()
    assert Process.of(child.pid).command() == ""


def test_processes_are_found_by_their_working_directory(tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    child = begun(subprocess.Popen(["sleep", "60"], cwd=here))
    try:
        assert working_in(here) == [Process.of(child.pid)]
        assert working_in(tmp_path) == []
        assert working_in(tmp_path / "nowhere") == []
    finally:
        child.kill()
        child.wait()


def test_who_does_not_end_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    end_all([process, process, Process(process.pid, "another one")], 0.1)
    assert sleeper.wait(timeout=30) == -signal.SIGKILL
