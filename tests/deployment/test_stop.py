"""`docker-compose stop` in the middle of a round: all ends in time, and nothing is lost."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine import docker
from stack import HOSPITALS, STAYING, Stack
from stack_faults import LONG, Witness

from fedapp.audit import verify
from fedapp.results import RunFolder

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

ROUNDS = {"federation.rounds": 2}
GRACE = 10.0  # seconds


def test_sigterm_ends_everything_within_ten_seconds_and_the_run_is_resumed(
    stack: Stack, tmp_path: Path
) -> None:
    witness = Witness(stack, *HOSPITALS)
    run = stack.run("stopped", **LONG, **ROUNDS)
    run.wait_until(
        lambda: all(witness.training(hospital, 1) for hospital in HOSPITALS), 240, "training"
    )
    with ThreadPoolExecutor(len(STAYING)) as pool:
        seconds = dict(zip(STAYING, pool.map(stack.stop, STAYING), strict=True))
    codes = {service: stack.state(service)["ExitCode"] for service in STAYING}
    print({service: (code, round(seconds[service], 1)) for service, code in codes.items()})
    run.close()

    # The SuperLink's server has ended, and raises the signal anew.
    expected = dict.fromkeys(STAYING, 0) | {"superlink": 128 + signal.SIGTERM}
    assert codes == expected, stack.all_logs()
    assert max(seconds.values()) < GRACE
    folder = RunFolder(run.folder)
    assert folder.state() in ("interrupted", "stopped")
    docker("cp", f"{stack.container('site-hungary')}:/state/site/audit.jsonl", str(tmp_path))
    assert verify(tmp_path / "audit.jsonl").events["ended"] >= 1

    stack.up()
    resumed = stack.run("stopped-resumed", **LONG, **ROUNDS, resume="/runs/stopped")
    assert resumed.result() == 0, resumed.output
    assert folder.state() == "completed"
