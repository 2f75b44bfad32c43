"""A run on a stack of containers, started the way a coordinator does and watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class StackRun:
    """``deploy/run.sh`` in the background, and the run folder that it leaves on the host.

    Parameters
    ----------
    project : Path
        The stack's folder.
    name : str
        Of the run; its folder is ``deploy/demo/runs/NAME``.
    settings : mapping
        As ``flwr run --run-config`` takes them.
    environment : mapping
    """

    def __init__(
        self, project: Path, name: str, settings: dict[str, Any], environment: dict[str, str]
    ) -> None:
        self.name, self.folder = name, project / "deploy" / "demo" / "runs" / name
        self._said = project / f"{name}.log"
        asked = " ".join(f"{key}={_literal(value)}" for key, value in settings.items())
        with self._said.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(project / "deploy" / "run.sh"), f"name='{name}' {asked}"],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )  # fmt: skip

    @property
    def output(self) -> str:
        """What run.sh has printed so far: its own words, and the ServerApp's log."""
        return self._said.read_text(encoding="utf-8", errors="replace")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the whole lines of ``metrics.jsonl`` so far; none before the first."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def rounds(self) -> int:
        """Return the newest round that is complete; 0 before the first."""
        return max((row["round"] for row in self.metrics() if row["site"] is None), default=0)

    def summary(self) -> dict[str, Any]:
        """Return ``summary.json``, which is there once the run has ended."""
        read: dict[str, Any] = json.loads((self.folder / "summary.json").read_text("utf-8"))
        return read

    def wait_for_round(self, number: int, within: float = 300.0) -> None:
        """Wait until round ``number`` is complete; fails at once if the run ends before it."""
        self.wait_until(lambda: self.rounds() >= number, within, f"round {number}")

    def wait_until(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Wait until ``condition()``; fails if the run ends before it, or after ``within`` s."""
        end = time.monotonic() + within
        while not condition():
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"the run ended before {what}:\n{self.output[-6000:]}")
            if time.monotonic() >= end:
                raise AssertionError(f"no {what} within {within:.0f} s:\n{self.output[-6000:]}")
            time.sleep(0.2)

    def result(self, within: float = 600.0) -> int:
        """Wait for the end and return run.sh's exit code: 0 if and only if the run completed."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the run did not end within {within:.0f} s:\n{self.output[-6000:]}"
            ) from None

    def close(self) -> None:
        """End run.sh if it is still there; the run itself goes on in its containers."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)
