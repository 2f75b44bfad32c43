"""What befalls containers, and what is seen of it from outside."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from engine import inspect
from stack import Stack
from stack_run import StackRun

LONG = {
    "model.source": "embedded:tiny-encoder", "model.max-length": 32, "lora.rank": 2,
    "train.threads": 1, "train.device": "cpu", "train.local-epochs": 20, "train.max-steps": 120,
    "federation.local-only": False,
}  # fmt: skip
"""Settings whose training takes some seconds at each site: long enough to be met in it."""


def crash(stack: Stack, service: str) -> None:
    """Kill a service as a crash does: the restart policy applies, which a `kill` keeps away."""
    crash_container(stack.container(service))


def crash_container(container: str) -> None:
    """Kill all processes of a container from outside the engine."""
    pid = int(inspect(container)["State"]["Pid"])
    assert pid > 1, f"{container} does not run"
    os.kill(pid, signal.SIGKILL)


class Witness:
    """What the sites' audit logs say since it was made.

    Parameters
    ----------
    stack : Stack
    hospitals : str
        Keys of `stack.HOSPITALS`.
    """

    def __init__(self, stack: Stack, *hospitals: str) -> None:
        self._stack = stack
        self._before = {name: len(audit(stack, name)) for name in hospitals}

    def training(self, hospital: str, round: int) -> list[str]:
        """Return what happened to the training of a round, in order: asked, answered, ..."""
        return [
            event["event"]
            for event in audit(self._stack, hospital)[self._before[hospital] :]
            if (event.get("action"), event.get("round")) == ("train", round)
        ]

    def began(self, hospital: str) -> int:
        """Return how often the site's service began."""
        new = audit(self._stack, hospital)[self._before[hospital] :]
        return [event["event"] for event in new].count("began")


def audit(stack: Stack, hospital: str) -> list[dict[str, Any]]:
    """Return the events of a site's audit log; none while its container is not there."""
    said = stack.exec(f"site-{hospital}", "cat", "/state/site/audit.jsonl", check=False)
    whole = said.stdout.rpartition("\n")[0] if said.returncode == 0 else ""
    return [json.loads(line)["body"] for line in whole.splitlines()]


def round_row(run: StackRun, round: int) -> dict[str, Any]:
    """Return the federation's row of a round."""
    rows = [row for row in run.metrics() if row["site"] is None and row["round"] == round]
    assert len(rows) == 1, rows
    return rows[0]


def adapter(run: StackRun) -> bytes:
    """Return the model that a run left."""
    return (run.folder / "adapter" / "adapter_model.safetensors").read_bytes()
