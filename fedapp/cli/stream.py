"""Show a run's own lines; keep Flower's and Ray's chatter and tracebacks for the log file."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OWN = re.compile(r"\d\d:\d\d:\d\d  |[┏┃┡│├└]")  # how the server half begins lines and tables
_OWN_ERROR = re.compile(r"\d\d:\d\d:\d\d  error: ")
_FLOWER = re.compile(r"(INFO|DEBUG|WARNING|ERROR|CRITICAL) *: ")
_NOISE = re.compile(
    r"\((pid=\d+|[A-Za-z]+( \S+)?( pid=\d+)?)(, ip=\S+)?\) "  # Ray, before a worker's output
    r"|\d{4}-\d\d-\d\d .*\b(INFO|WARNING) \w+\.py:\d+"
    r"|\[\d{4}-\d\d-\d\d .*\] "
    r"|\S+\.py:\d+: \w*Warning: |  warnings\.warn\("
    r"|Using SuperLink: |Successfully (started run|installed) |Starting local SuperLink"
)
_CAUSE = re.compile(r"ERROR *: +An exception occured!! (.+)")  # Flower's words and spelling
_RUN_ID = re.compile(r"Successfully started run (\d+)")


class LineFilter:
    """Tells, line by line, what to show.

    Whatever is not recognised as noise is shown: rather a line too much than a lost one. After a
    traceback has begun only a line of ours is recognised as its end.
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
            return not _OWN_ERROR.match(text)  # the command itself tells it, once, at its end
        if text.startswith("ERROR") and "Exit Code:" in text:
            self._over = True  # what follows is Flower's own explanation of its exit code
        if text.startswith(("ERROR", "Traceback (most recent call last)")):
            self._in_traceback = True  # until a line of ours: its last line looks like any other
        if self._over or self._in_traceback or _FLOWER.match(text) or _NOISE.match(text):
            return False
        return self._keeps_blank(text)

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


def cause(line: str) -> str:
    """Return why the simulation broke if ``line`` tells it, else "".

    Flower's own last word of it is always "An error was encountered. Ending simulation."
    """
    match = _CAUSE.match(plain(line))
    return match.group(1).strip() if match else ""
