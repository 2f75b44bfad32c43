"""`fedapp run` and `fedapp stop` on a real Flower daemon, with an app that takes no time."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from desk import Desk, wait_for_line
from tiny_app import write_app

from fedapp.cli.home import Home
from fedapp.cli.process import wait_for_end

pytestmark = pytest.mark.slow

PATIENCE = 30.0  # seconds in which a busy machine sees the end of a process that was ended


@pytest.fixture(scope="module")
def app(desk: Desk) -> Path:
    return desk.app("one")


def test_a_run_that_completes_returns_0(desk: Desk, app: Path) -> None:
    tricky = """it's a "text" = with \\ everything"""
    (desk.here / "s.toml").write_text(f"data.text-column = {json.dumps(tricky)}\n")
    # Neither the user's directory nor PYTHONPATH may take the place of the bundle's code.
    write_app(desk.here / "decoy", "stale")
    desk.environment["PYTHONPATH"] = str(desk.here / "decoy")
    done = desk.fedapp("run", app, "-c", "s.toml", "--name", "good", "--seed", "3")
    del desk.environment["PYTHONPATH"]

    assert (done.returncode, done.stderr) == (0, "")
    assert f"told to {tricky!r}" in done.stdout
    home = Home(next((desk.home / ".fedapp/projects").glob("one-*")))
    assert f"client says hello from {home.neutral}" in done.stdout
    assert f"Results: {desk.here}/runs/good" in done.stdout
    for noise in ("INFO", "WARNING", "chatter", "SuperLink", "ray"):
        assert noise not in done.stdout
    assert "chatter of a worker" in (home.logs / "good.log").read_text()
    settings = json.loads((desk.here / "runs/good/config.json").read_text())["settings"]
    assert (settings["seed"], settings["data.text-column"]) == (3, tricky)


@pytest.mark.parametrize(
    ("what", "code", "sentence"),
    [
        ("fail", 4, "site A, round 1: labels differ"),
        ("exit", 1, "ended without completing"),
    ],
)
def test_a_run_that_fails_returns_its_own_code_and_one_sentence(
    desk: Desk, app: Path, what: str, code: int, sentence: str
) -> None:
    done = desk.fedapp("run", app, "-c", f"data.text-column={what}", "--name", what)

    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert sentence not in done.stdout
    status = desk.status(what)
    assert (status["state"], status["exit_code"]) == ("failed", code)
    assert sentence in str(status["error"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_cleanly(desk: Desk, app: Path, number: int, code: int) -> None:
    name = f"stopped-{code}"
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", name)
    wait_for_line(process, "waiting")
    running = desk.daemon(app).executing()
    assert running

    process.send_signal(number)
    output, errors = process.communicate(timeout=300)

    assert process.returncode == code
    assert errors == "error: the run was stopped before its end\n"
    assert "Traceback" not in output
    assert wait_for_end(running, PATIENCE)
    assert desk.daemon(app).process.alive
    assert desk.status(name)["state"] == "stopped"


def test_what_a_killed_command_left_running_is_stopped_by_the_next(desk: Desk, app: Path) -> None:
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", "orphan")
    wait_for_line(process, "waiting")

    second = desk.fedapp("run", app, "--name", "second")
    assert second.returncode == 1
    assert f"another run of this project is in progress (process {process.pid})" in second.stderr
    orphans = desk.daemon(app).executing()
    process.kill()
    process.communicate()
    assert any(orphan.alive for orphan in orphans)

    third = desk.fedapp("run", app, "--name", "third")
    assert third.returncode == 0, third.stderr
    assert "Stopped a run that an earlier" in third.stdout
    assert wait_for_end(orphans, PATIENCE)


def test_two_projects_share_nothing_and_stop_ends_only_its_own(desk: Desk, app: Path) -> None:
    other = desk.app("two", "greetings")
    done = desk.fedapp("run", other, "--name", "other")
    assert "client says greetings" in done.stdout
    again = desk.fedapp("run", app, "--name", "again")
    assert "client says hello" in again.stdout
    first, second = desk.daemon(app), desk.daemon(other)
    assert first.port != second.port
    assert first.process.pid != second.process.pid

    assert "Ended the daemon" in desk.fedapp("stop", other).stdout

    assert wait_for_end([second.process], PATIENCE)
    assert first.process.alive
    assert "No daemon" in desk.fedapp("stop", other).stdout


def test_stop_ends_a_run_in_progress_too(desk: Desk, app: Path) -> None:
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", "cut")
    wait_for_line(process, "waiting")
    family = [desk.daemon(app).process, *desk.daemon(app).process.descendants()]

    assert desk.fedapp("stop", app).returncode == 0

    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "the Flower daemon ended during the run" in errors
    assert wait_for_end(family, PATIENCE)


def test_a_daemon_that_was_killed_is_replaced(desk: Desk, app: Path) -> None:
    process = desk.start("run", app, "-c", "data.text-column=wait", "--name", "before")
    wait_for_line(process, "waiting")
    killed, orphans = desk.daemon(app).process, desk.daemon(app).executing()
    assert orphans
    os.kill(killed.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == 1
    assert desk.status("before")["state"] == "stopped"
    assert wait_for_end(orphans, PATIENCE)

    done = desk.fedapp("run", app, "--name", "after")

    assert done.returncode == 0, done.stderr
    assert desk.daemon(app).process != killed
