"""Show a run's own lines; keep Flower's and Ray's chatter and tracebacks for the log file."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OWN = re.compile(r"\d\d:\d\d:\d\d  ")  # how the server half begins its lines
_FLOWER = re.compile(r"(INFO|DEBUG|WARNING|ERROR|CRITICAL) *: ")
_NOISE = re.compile(
    r"\([A-Za-z]+( \S+)?( pid=\d+)?(, ip=\S+)?\) "  # Ray, in front of a worker's output
    r"|\d{4}-\d\d-\d\d .* (INFO|WARNING) \w+\.py:\d+"
    r"|\[\d{4}-\d\d-\d\d .*\] "
    r"|\S+\.py:\d+: \w*Warning: |  warnings\.warn\("
    r"|Using SuperLink: |Successfully (started run|installed) |Starting local SuperLink"
    r"|ray::|Exception \w+ occurred\. Message: "
    r"|The above exception was |During handling of the above exception"
    r"|An unhandled exception occurred when running |For more information, visit: "
)
_LAST_OF_TRACEBACK = re.compile(r"[A-Za-z_][\w.]*(\([\w.]+\))?: |[A-Za-z_][\w.]*$")
_RUN_ID = re.compile(r"Successfully started run (\d+)")


class LineFilter:
    """Tells, line by line, what to show.

    Whatever is not recognised as noise is shown: rather a line too much than a lost one.
    """

    def __init__(self) -> None:
        self._in_traceback = False
        self._blank = False
        self._over = False

    def keeps(self, line: str) -> bool:
        """Whether to show ``line`` (without its line end)."""
        text = plain(line)
        if _OWN.match(text):
            self._in_traceback = self._blank = False
            return True
        if text.startswith("ERROR") and "Exit Code:" in text:
            self._over = True  # what follows is Flower's own explanation of its exit code
        if _FLOWER.match(text) or text.startswith("Traceback (most recent call last)"):
            # Flower's log line may be empty, or begin with a traceback
            self._in_traceback = text.startswith(("ERROR", "Traceback"))
            return False
        if self._in_traceback:
            inside = not text or text[0].isspace() or _NOISE.match(text) is not None
            if not inside and _LAST_OF_TRACEBACK.match(text):
                self._in_traceback = False
            return False
        return not self._over and not _NOISE.match(text) and self._keeps_blank(text)

    def _keeps_blank(self, text: str) -> bool:
        # Chatter that was left out often stands between blank lines.
        first = bool(text.strip()) or not self._blank
        self._blank = not text.strip()
        return first


def plain(line: str) -> str:
    """Return ``line`` without colour codes."""
    return _COLOURS.sub("", line)


def run_id(line: str) -> str:
    """Return the run id if ``line`` announces one, else ""."""
    match = _RUN_ID.search(plain(line))
    return match.group(1) if match else ""
