"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from fedapp.atomic import write_text
from fedapp.report.page import render
from fedapp.report.run_data import load_run

__all__ = ["write_report"]


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run folder, atomically.

    Reads ``config.json``, ``metrics.jsonl`` and ``summary.json``, and how the run ended. The same
    files give the same bytes. A run that has not finished gets a report that says so.

    Parameters
    ----------
    run_folder : Path
        Folder of a run, finished or not.

    Returns
    -------
    Path
        The report.

    Raises
    ------
    FedappError
        If the folder holds nothing of a run.
    OSError
        If the report cannot be written; an earlier one stays.
    """
    path = run_folder / "report.html"
    write_text(path, render(load_run(run_folder)))
    return path
