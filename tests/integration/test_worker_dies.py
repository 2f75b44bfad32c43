"""A simulation's worker dies in the middle of its training: named, replaced, never contagious."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from desk import WHY_GONE, Desk
from interface import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SITES = ("North", "South", "West")
SETTINGS = (
    "method=subspace-reg model.source=embedded:tiny-encoder data.source=d.csv train.device=cpu "
    "train.threads=1 train.local-epochs=16 federation.rounds=2 federation.local-only=false"
)
DIED = f"site South: its worker process died: {WHY_GONE}"
Event = dict[str, object]


@pytest.fixture(scope="module")
def desk(desk: Desk) -> Desk:
    desk.records(SITES, 80)
    return desk


@pytest.fixture(scope="module")
def undisturbed(desk: Desk) -> bytes:
    done = desk.fedapp("run", ROOT, "--name", "calm", "-c", SETTINGS)
    assert done.returncode == 0, done.stderr
    return adapter(desk, "calm")


def test_a_worker_that_dies_once_is_replaced_and_nothing_is_lost(
    desk: Desk, undisturbed: bytes
) -> None:
    done, killed = run(desk, "once", kill_once)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(killed) == 1
    assert done.stdout.count("warning: ") == 1
    assert re.search(f"warning: {DIED.replace(':', ', round 2:', 1)}", done.stdout)
    assert adapter(desk, "once") == undisturbed


def test_a_worker_that_always_dies_ends_the_run_in_words_and_resuming_loses_nothing(
    desk: Desk, undisturbed: bytes
) -> None:
    done, killed = run(desk, "always", kill_always)

    assert done.returncode == 5
    assert len(killed) == len({event["process"] for event in killed}) == 3  # a fresh one each time
    assert done.stderr.count("\n") == 2
    assert "error: round 2: 2 of 3 sites sent a valid update, at least 3 needed" in done.stderr
    assert len(re.findall(DIED, done.stderr)) == 1
    assert "ray" not in (done.stdout + done.stderr).lower().replace(str(desk.here).lower(), "")
    assert desk.status("always")["state"] == "failed"

    resumed = desk.fedapp("run", ROOT, "--resume", desk.here / "runs" / "always")

    assert resumed.returncode == 0, resumed.stderr
    assert adapter(desk, "always") == undisturbed


def test_a_worker_that_takes_the_last_memory_is_named_as_such(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Desk(tmp_path_factory.mktemp("full"))
    # Ray's memory monitor finds every machine full, as it does a full one.
    other.environment |= {"RAY_memory_usage_threshold": "0.01"}
    (other.here / "d.csv").write_bytes((desk.here / "d.csv").read_bytes())
    try:
        done = other.fedapp("run", ROOT, "--name", "full", "-c", SETTINGS)
    finally:
        other.fedapp("stop", ROOT)

    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "its worker process died: Ray ended it because this machine was about to run out" in (
        done.stderr
    )
    assert other.status("full")["state"] == "failed"


def kill_once(event: Event, killed: list[Event]) -> bool:
    return event["site"] == "South" and event["round"] == 2 and not killed


def kill_always(event: Event, killed: list[Event]) -> bool:
    return event["site"] == "South" and event["round"] == 2


def run(
    desk: Desk, name: str, hits: Callable[[Event, list[Event]], bool]
) -> tuple[subprocess.CompletedProcess[str], list[Event]]:
    """Run and kill, as soon as it reports a step, every worker that is hit; return whom."""
    killed: list[Event] = []
    over = threading.Event()
    hunter = threading.Thread(
        target=hunt, args=(desk.here / "runs" / name / "progress.jsonl", hits, killed, over)
    )
    hunter.start()
    try:
        done = desk.fedapp("run", ROOT, "--name", name, "-c", SETTINGS)
    finally:
        over.set()
        hunter.join()
    return done, killed


def hunt(
    progress: Path,
    hits: Callable[[Event, list[Event]], bool],
    killed: list[Event],
    over: threading.Event,
) -> None:
    seen = 0
    while not over.is_set():
        lines = progress.read_text().splitlines() if progress.exists() else []
        for event in map(json.loads, lines[seen:]):
            again = event["process"] in {other["process"] for other in killed}
            if event["step"] < event["steps"] and hits(event, killed) and not again:
                os.kill(event["process"], signal.SIGKILL)
                killed.append(event)
        seen = len(lines)
        time.sleep(0.01)


def adapter(desk: Desk, name: str) -> bytes:
    return (desk.here / "runs" / name / "adapter" / "adapter_model.safetensors").read_bytes()
