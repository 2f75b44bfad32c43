"""One run in which every part is killed once: it ends with the bits of an undisturbed one."""

from __future__ import annotations

import time

import pytest
from stack import HOSPITALS, Stack
from stack_faults import LONG, Witness, adapter, crash, round_row
from stack_run import StackRun

from fedapp.results import RunFolder

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

ROUNDS = {"federation.rounds": 4}
AWAY = 20.0  # seconds
CRASHING = ("hungary", "cleveland")


@pytest.fixture(scope="module")
def witness(stack: Stack, undisturbed: StackRun) -> Witness:
    assert undisturbed.result() == 0, undisturbed.output
    return Witness(stack, *HOSPITALS)


@pytest.fixture(scope="module")
def run(stack: Stack, witness: Witness) -> StackRun:
    return stack.run("kills", **LONG, **ROUNDS)


def wait_for_training(run: StackRun, witness: Witness, round: int, *hospitals: str) -> None:
    """Wait until these sites are in the training of a round."""

    def begun() -> bool:
        return all(witness.training(hospital, round) for hospital in hospitals)

    run.wait_until(begun, 300, f"training of round {round}")


def test_a_site_and_a_supernode_that_crash_in_training(
    stack: Stack, run: StackRun, witness: Witness
) -> None:
    """The site trains again; behind the SuperNode it was done once, and the result is kept."""
    for hospital in CRASHING:
        wait_for_training(run, witness, 2, hospital)
        stack.pause(f"site-{hospital}")  # on a slow engine it might be done before it is killed
    crash(stack, "supernode-hungary")
    for hospital in CRASHING:
        stack.unpause(f"site-{hospital}")
    crash(stack, "site-cleveland")
    run.wait_for_round(2)

    row = round_row(run, 2)
    assert (row["replies"], row["retries"], row["missing"]) == (3, 1, {})
    assert "site Hungary, round 2: its client app failed" in run.output
    assert "round 2: repeat 1, asking Hungary" in run.output
    assert witness.training("cleveland", 2) == ["asked", "asked", "answered"]
    assert witness.began("cleveland") == 1
    assert witness.training("hungary", 2) == ["asked", "answered", "repeated"]
    assert witness.training("long-beach", 2) == ["asked", "answered"]
    assert stack.restarts("site-cleveland") == 1
    assert stack.restarts("supernode-hungary") > 1, "it was let in before Flower's 60 s"


def test_a_superlink_that_is_away_for_twenty_seconds(
    stack: Stack, run: StackRun, witness: Witness
) -> None:
    wait_for_training(run, witness, 3, *HOSPITALS)
    stack.kill("superlink")
    time.sleep(AWAY)
    assert not stack.state("superlink")["Running"]
    stack.start("superlink")
    run.wait_for_round(3)

    row = round_row(run, 3)
    assert (row["replies"], row["retries"], row["missing"]) == (3, 0, {})
    for hospital in HOSPITALS:
        assert witness.training(hospital, 3) == ["asked", "answered"]
    assert stack.restarts("superexec") == 0


def test_an_executor_that_crashes_takes_the_run_along_and_it_is_resumed(
    stack: Stack, run: StackRun, undisturbed: StackRun, witness: Witness
) -> None:
    wait_for_training(run, witness, 4, *HOSPITALS)
    crash(stack, "superexec")
    folder = RunFolder(run.folder)
    stack.wait_until(lambda: folder.state() == "interrupted", 20, "the run to be interrupted")
    stack.wait_healthy("superexec")
    resumed = stack.run("resumed", **LONG, **ROUNDS, resume="/runs/kills")

    assert resumed.result() == 0, resumed.output
    assert "resumed after round 3 of 4" in resumed.output
    for hospital in HOSPITALS:
        assert sorted(witness.training(hospital, 4)) == ["answered", "asked", "repeated"]
    assert folder.state() == "completed"
    assert adapter(run) == adapter(undisturbed)
    assert run.result(120) == 1
    assert "finished:failed" in run.output
