"""The process that executes a run is killed: one sentence soon after, and nothing left behind."""

from __future__ import annotations

import os
import signal
import time

import pytest
from desk import Desk, wait_for_line

from fedapp.cli.home import Home
from fedapp.cli.process import wait_for_end, with_environment

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_it_is_noticed_within_seconds_and_nothing_is_left(desk: Desk) -> None:
    app = desk.app("one")
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", "killed")
    wait_for_line(process, "waiting")
    daemon = desk.daemon(app)
    (run,) = daemon.runs()
    deadline = time.monotonic() + 60
    while not any("ray::" in p.command() for p in daemon.executing()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    family = daemon.executing()

    os.kill(run.pid, signal.SIGKILL)
    killed = time.monotonic()
    _, errors = process.communicate(timeout=300)

    # A second of the machine's own time for `flwr list` and `flwr stop` each, ten times that here.
    assert time.monotonic() - killed < 40
    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert "the process that executed the run has gone: it was killed, or it crashed" in errors
    assert desk.status("killed")["state"] == "failed"
    assert not any(member.alive for member in family)
    assert left_of(desk, "one", daemon.process.pid) == []
    assert daemon.process.alive


def test_the_next_run_works(desk: Desk) -> None:
    done = desk.fedapp("run", desk.here.parent / "one", "--name", "next")

    assert (done.returncode, done.stderr) == (0, "")
    assert "left behind" not in done.stdout


def test_without_a_command_that_watches_the_next_one_cleans_up(desk: Desk) -> None:
    app = desk.app("two")
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", "orphan")
    wait_for_line(process, "waiting")
    daemon = desk.daemon(app)
    family = daemon.executing()
    process.kill()
    process.communicate()
    for member in (daemon.process, *daemon.runs()):
        os.kill(member.pid, signal.SIGKILL)

    done = desk.fedapp("run", app, "--name", "after")

    assert done.returncode == 0, done.stderr
    assert wait_for_end(family, 0)


def left_of(desk: Desk, project: str, daemon: int) -> list[str]:
    """Command lines of the project's processes other than its daemon's own."""
    home = Home(next((desk.home / ".fedapp/projects").glob(f"{project}-*")))
    found = [p for p in with_environment("FLWR_HOME", str(home.flower)) if p.pid != daemon]
    return [p.command() for p in found if p.alive and "flower-superexec" not in p.command()]
