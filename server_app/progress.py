"""The simulation's progress file, told as one line now and then.

A site appends one JSON object a line: ``site``, ``round``, ``action``, ``step``, ``steps``,
``loss``, ``time``.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from server_app.log import log, warn


class Progress:
    """Logs how far the training sites are, at most once per ``interval`` seconds.

    Parameters
    ----------
    path : Path or None
        The progress file, which need not exist yet; None: only times are told.
    interval : float
        Seconds between lines.
    """

    def __init__(self, path: Path | None, interval: float) -> None:
        self._path, self._interval = path, interval
        self._offset = 0
        self._steps: dict[str, tuple[int, int]] = {}
        self._last: dict[str, Any] | None = None
        self._title = ""
        self._sites: list[str] = []
        self._weight = (0.0, 1.0)
        self._started = self._told = self._entered = time.monotonic()
        self._begun_share = 0.0

    def start(self, share_done: float) -> None:
        """Begin to count time; ``share_done`` of the run lies behind (not 0 after a resume)."""
        self._started = time.monotonic()
        self._begun_share = share_done

    def phase(self, title: str, sites: list[str], share_from: float, share_to: float) -> None:
        """Enter a phase, such as a round, that covers this part of the run (shares of 1)."""
        self._title, self._sites, self._weight = title, list(sites), (share_from, share_to)
        self._entered = time.monotonic()
        self._steps, self._last = {}, None
        self._read()  # what is there belongs to earlier phases
        self._steps, self._last = {}, None

    def tick(self) -> None:
        """Read what is new and log a line if it is time."""
        now = time.monotonic()
        if now - self._told < self._interval:
            return
        self._told = now
        self._read()
        line = self._line()
        if line:
            log(line)

    def seconds_left(self) -> float | None:
        """Estimate the seconds to the end of the run; None while nothing is known."""
        begin, end = self._weight
        done = sum(step / max(1, steps) for step, steps in self._steps.values())
        share = begin + (end - begin) * min(1.0, done / max(1, len(self._sites)))
        covered = share - self._begun_share
        if covered <= 0.0:
            return None
        elapsed = time.monotonic() - self._started
        return elapsed * (1.0 - share) / covered

    def _line(self) -> str:
        parts = [self._title]
        if self._last is not None:
            event = self._last
            parts.append(
                f"{event['site']} step {event['step']}/{event['steps']} loss {event['loss']:.2f}"
            )
        elif not self._title:
            return ""
        else:
            waited = time.monotonic() - self._entered
            parts.append(f"waiting for the sites since {waited:.0f} s")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"about {left:.0f} s left")
        return " · ".join(parts)

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except OSError as error:
            warn(f"{self._path} cannot be read, no more progress: {error}")
            self._path = None
            return
        complete, newline, _ = data.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        for line in complete.splitlines():
            event = _parse(line)
            if event is not None and event["site"] in self._sites:
                self._steps[event["site"]] = (event["step"], event["steps"])
                self._last = event


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a well-formed event; the file is a display, a broken line must not end a run."""
    try:
        event = json.loads(line)
        return {
            "site": str(event["site"]),
            "step": int(event["step"]),
            "steps": int(event["steps"]),
            "loss": float(event["loss"]),
        }
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
