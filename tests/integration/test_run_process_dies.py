"""The process that executes a run is killed: one sentence, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from desk import WHY_GONE, Desk, wait_for_line

from fedapp.cli.home import Home
from fedapp.cli.process import Process, wait_for_end, with_environment

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

PATIENCE = 30.0  # seconds in which a busy machine sees the end of a process that was killed


def test_it_is_noticed_before_flower_does_and_nothing_is_left(desk: Desk) -> None:
    app = desk.app("one")
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", "killed")
    wait_for_line(process, "waiting")
    daemon = desk.daemon(app)
    (run,) = daemon.runs()
    deadline = time.monotonic() + 300
    while not any("ray::" in p.command() for p in daemon.executing()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    family = daemon.executing()

    os.kill(run.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)

    assert process.returncode == 1
    assert errors.count("\n") == 1
    # Flower's own word of it, after its minute without a heartbeat, would read otherwise.
    assert re.search(f"the process that executed the run has gone: {WHY_GONE}", errors)
    assert desk.status("killed")["state"] == "failed"
    assert wait_for_end(family, PATIENCE), [member.command() for member in family]
    assert wait_for_end(left_of(desk, "one", daemon.process.pid), PATIENCE)
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
    assert wait_for_end(family, PATIENCE), [member.command() for member in family]


def left_of(desk: Desk, project: str, daemon: int) -> list[Process]:
    """The project's processes other than its daemon's own."""
    home = Home(next((desk.home / ".fedapp/projects").glob(f"{project}-*")))
    found = [p for p in with_environment("FLWR_HOME", str(home.flower)) if p.pid != daemon]
    return [p for p in found if "flower-superexec" not in p.command()]
