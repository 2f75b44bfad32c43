"""Decide how a run really ended: Flower's status and the run folder's own must agree.

``flwr run --stream`` exits with 0 when a run fails, and a ``SystemExit`` in the server app counts
as completed; neither can be trusted alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.cli.flower import Run
from fedapp.results import RunFolder
from fedapp.text import clean

_SILENT = "No heartbeat received"  # what Flower says a minute after a process has gone
_LATE = "The current node timed out during startup"  # what Ray says after 30 s
_LONGEST_ERROR = 5000  # characters; a sentence may name very many sites


@dataclass(frozen=True)
class Verdict:
    """The exit code and, unless it is 0, one sentence.

    Attributes
    ----------
    exit_code : int
    error : str
    begun : bool
        False if the run ended before anything of it had begun, for a reason that may pass.
    """

    exit_code: int
    error: str = ""
    begun: bool = True


def judge(run: Run, folder: Path, log: Path) -> Verdict:
    """Compare Flower's view of ``run`` with ``status.json`` in its ``folder``.

    A file written by another run is as good as none.
    """
    status = read_status(folder)
    refused = status.get("refused")  # of a completed run, which it still is
    if isinstance(refused, dict) and _is_of(refused, run):
        return Verdict(_code(refused), _error(refused) or f"the run was refused; see {log}")
    if status.get("run_id") is not None and not _is_of(status, run):
        status = {}
    state = status.get("state")
    if state == "failed":
        return Verdict(_code(status), _error(status) or f"the run failed; see {log}")
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
        reason = " ".join(run.details.removeprefix("Simulation failed with exception: ").split())
        if reason.startswith(_LATE):
            return Verdict(
                1,
                "Ray, which runs the sites, did not start within the 30 s that it gives itself; "
                "most often other programs take the processors: run again when they are done "
                f"(full output: {log})",
                begun=False,
            )
        reason = clean(reason, _LONGEST_ERROR) or "the run failed"
        return Verdict(1, f"{reason} (full output: {log})")
    if run.status == "finished:completed":
        return Verdict(
            1,
            f"the run ended without completing (its folder {folder} says "
            f"'{state if isinstance(state, str) else 'nothing'}'); full output: {log}",
        )
    return Verdict(1, f"Flower calls the run '{run.status}'; full output: {log}")


def read_status(folder: Path) -> dict[str, Any]:
    """Return ``status.json`` of a run folder; empty if there is none that can be read."""
    try:
        return RunFolder(folder).read_status()
    except OSError:
        return {}


def _is_of(status: dict[str, Any], run: Run) -> bool:
    number = status.get("run_id")
    return type(number) is int and str(number) == run.run_id


def _error(status: dict[str, Any]) -> str:
    error = status.get("error")
    return clean(error, _LONGEST_ERROR) if isinstance(error, str) else ""


def _code(status: dict[str, Any]) -> int:
    code = status.get("exit_code")
    return code if isinstance(code, int) and 0 < code < 256 else 1
