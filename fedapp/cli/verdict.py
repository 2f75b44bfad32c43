"""Decide how a run really ended: Flower's status and the run folder's own must agree.

``flwr run --stream`` exits with 0 when a run fails, and a ``SystemExit`` in the server app counts
as completed; neither can be trusted alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.cli.flower import Run

_SILENT = "No heartbeat received"  # what Flower says a minute after a process has gone


@dataclass(frozen=True)
class Verdict:
    """The exit code and, unless it is 0, one sentence."""

    exit_code: int
    error: str = ""


def judge(run: Run, folder: Path, log: Path) -> Verdict:
    """Compare Flower's view of ``run`` with ``status.json`` in its ``folder``.

    A file written by another run is as good as none.
    """
    status = read_status(folder)
    refused = status.get("refused")  # of a completed run, which it still is
    if isinstance(refused, dict) and str(refused.get("run_id")) == run.run_id:
        return Verdict(_code(refused), str(refused.get("error")))
    if status.get("run_id") is not None and str(status["run_id"]) != run.run_id:
        status = {}
    state = status.get("state")
    if state == "failed":
        return Verdict(_code(status), str(status.get("error") or f"the run failed; see {log}"))
    if run.status == "finished:stopped" or state == "stopped":
        return Verdict(130, "the run was stopped before its end")
    if run.status == "finished:completed" and state == "completed":
        return Verdict(0)
    if run.status == "finished:failed" and run.details.startswith(_SILENT):
        return Verdict(
            1,
            "the run's process was killed, for instance because the machine had no memory left "
            f"(full output: {log})",
        )
    if run.status == "finished:failed":
        reason = run.details.removeprefix("Simulation failed with exception: ").strip()
        return Verdict(1, f"{reason or 'the run failed'} (full output: {log})")
    if run.status == "finished:completed":
        return Verdict(
            1,
            f"the run ended without completing (its folder {folder} says "
            f"'{state or 'nothing'}'); full output: {log}",
        )
    return Verdict(1, f"Flower calls the run '{run.status}'; full output: {log}")


def read_status(folder: Path) -> dict[str, Any]:
    """Return ``status.json`` of a run folder; empty if there is none that can be read."""
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _code(status: dict[str, Any]) -> int:
    code = status.get("exit_code")
    return code if isinstance(code, int) and 0 < code < 256 else 1
