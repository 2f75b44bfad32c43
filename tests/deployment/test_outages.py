"""One long run without a deadline for anybody: hospitals that are cut off, silent, and full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import HOSPITALS, Stack
from stack_faults import LONG, round_row
from stack_run import StackRun

from fedapp.audit import verify
from fedapp.results import RunFolder

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

PATIENCE = 30.0  # seconds for a round's replies
# Seconds until a hospital trains again after its network is back: gRPC's pauses between tries to
# connect, and Flower's. In rounds that is as many as the others' records are few.
RETURN = 120.0
SETTINGS = {
    **LONG, "train.max-steps": 40,
    "federation.rounds": 90, "federation.round-timeout": PATIENCE, "federation.min-replies": 1,
}  # fmt: skip
SMALL_DISK = """
services:
  site-cleveland: {volumes: ["small:/state"]}
volumes:
  small: {driver_opts: {type: tmpfs, device: tmpfs, o: "size=2m,mode=1777"}}
"""
HEALTH = ("python", "-m", "fedapp.provision.health", "supernode", "/etc/fedapp/join.toml")
REFUSAL = "the audit log cannot be written (No space left on device), and nothing is done without"
FILL = ("sh", "-c", "cat /dev/zero >> /state/fill")


@pytest.fixture(scope="module")
def run(stack: Stack) -> Iterator[StackRun]:
    """A run that goes on until it is stopped; Cleveland has a state folder of 2 MB."""
    (stack.folder / "small.yml").write_text(SMALL_DISK, encoding="utf-8")
    files = ("-f", "docker-compose.yml", "-f", "small.yml")
    stack.compose(*files, "up", "-d", "--no-deps", "site-cleveland")
    stack.wait_healthy("site-cleveland")
    yield stack.run("outages", **SETTINGS)
    stack.compose("up", "-d", "--no-deps", "site-cleveland")
    stack.wait_healthy("site-cleveland")


def missed(run: StackRun, site: str, after: int) -> dict[int, str]:
    """Return why a site's update was missing, by round."""
    return {
        row["round"]: row["missing"][site]
        for row in run.metrics()
        if row["site"] is None and row["round"] > after and site in row["missing"]
    }


def trained(run: StackRun, site: str, after: int) -> bool:
    """Return whether a round that began after ``after`` had the site's update."""
    rounds = range(after + 2, run.rounds() + 1)
    return len(missed(run, site, after + 1)) < len(rounds)


def wait_for_everybody(run: StackRun) -> None:
    """Wait for a round, of those that come now, in which all sites trained."""
    after = run.rounds() + 1

    def complete() -> bool:
        newest = run.rounds()
        return newest > after and round_row(run, newest)["replies"] == len(HOSPITALS)

    run.wait_until(complete, 240, "a round of all sites")


def test_one_hospital_is_cut_off_for_two_rounds_and_another_never_answers(
    stack: Stack, run: StackRun
) -> None:
    run.wait_for_round(1)
    restarts = stack.restarts("supernode-hungary")
    stack.disconnect("supernode-hungary", "hungary")
    stack.pause("site-long-beach")
    before = run.rounds()
    run.wait_until(lambda: len(missed(run, "Hungary", before)) >= 2, 240, "two rounds without")
    offline = stack.exec("supernode-hungary", *HEALTH, check=False)
    stack.connect("supernode-hungary", "hungary")
    stack.unpause("site-long-beach")
    healed, after = time.monotonic(), run.rounds()

    cut, silent = missed(run, "Hungary", before), missed(run, "VA Long Beach", before)
    assert set(cut.values()) <= {"timeout", "error"}
    assert set(silent.values()) == {"timeout"}
    for number in set(cut) & set(silent):
        row = round_row(run, number)
        assert (row["replies"], row["retries"]) == (1, 0)
        assert row["seconds"] < PATIENCE + 5
    assert offline.returncode == 1
    assert offline.stdout == "alive, but offline: no connection to coordinator:8443\n"
    run.wait_until(lambda: trained(run, "Hungary", after), RETURN, "a round with Hungary")
    print(f"Hungary trained {time.monotonic() - healed:.1f} s after its network was back")
    wait_for_everybody(run)
    assert stack.restarts("supernode-hungary") == restarts
    assert stack.exec("supernode-hungary", *HEALTH).stdout == "connected to coordinator:8443\n"


def test_a_site_whose_disk_is_full_sends_nothing_and_comes_back_when_there_is_room(
    stack: Stack, run: StackRun, tmp_path: Path
) -> None:
    before = run.rounds()

    def refused() -> bool:
        stack.exec("site-cleveland", *FILL, check=False)
        return bool(missed(run, "Cleveland", before))

    run.wait_until(refused, 240, "round without Cleveland")
    assert set(missed(run, "Cleveland", before).values()) == {"failure"}
    run.wait_until(lambda: REFUSAL in run.output, 30, "the reason in the log")
    assert "is sent but not kept (No space left on device)" in stack.logs("site-cleveland")
    row = round_row(run, max(missed(run, "Cleveland", before)))
    assert row["replies"] == len(HOSPITALS) - 1
    stack.exec("site-cleveland", "rm", "/state/fill")
    wait_for_everybody(run)

    assert stack.restarts("site-cleveland") == 0
    log = tmp_path / "audit.jsonl"
    log.write_text(stack.exec("site-cleveland", "cat", "/state/site/audit.jsonl").stdout)
    assert verify(log).events["answered"] > 3


def test_a_run_is_stopped_by_its_coordinator(stack: Stack, run: StackRun) -> None:
    folder = RunFolder(run.folder)
    number = folder.read_status()["run_id"]
    stack.compose("run", "--rm", "-T", "flwr", "stop", str(number), "fedapp")

    assert run.result(120) == 1
    assert "finished:stopped" in run.output
    # Flower gives a process that is told to end 5 s; one that needs longer is found to be gone.
    ended = ("stopped", "interrupted")
    stack.wait_until(lambda: folder.state() in ended, 90, "the run folder to tell it")
