"""Recognise a process again: a pid alone may have been given to another program since."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process that can be told from a later one with the same pid.

    Attributes
    ----------
    pid : int
    started : str
        When it was started, in the system's own words; "" if it never ran.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that is ``pid`` now."""
        return cls(pid, _start_time(pid))

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that has ended but was not collected does not."""
        return bool(self.started) and _start_time(self.pid) == self.started

    def command(self) -> str:
        """Return its command line; "" if it has ended."""
        if not self.alive:
            return ""
        if (_PROC / "self").exists():
            return _command(self.pid)
        return _ps("-o", "args=", "-p", str(self.pid)).strip()

    def children(self) -> list[Process]:
        """Return the processes it has started and that still run."""
        pids = [pid for pid, parent in _parents() if parent == self.pid]
        return [process for process in map(Process.of, pids) if process.started]

    def descendants(self) -> list[Process]:
        """Return its children, their children, and so on."""
        below: dict[int, list[int]] = {}
        for pid, parent in _parents():
            below.setdefault(parent, []).append(pid)
        waiting, found = [self.pid], list[Process]()
        for pid in waiting:
            processes = [Process.of(child) for child in below.get(pid, ())]
            found += [process for process in processes if process.started]
            waiting += [process.pid for process in processes if process.started]
        return found

    def terminate(self, grace: float) -> bool:
        """End it with all its descendants, politely at first; never any other process.

        Parameters
        ----------
        grace : float
            Seconds between the request and the forced end.

        Returns
        -------
        bool
            False if it had already ended.
        """
        if not self.alive:
            return False
        family = [self, *self.descendants()]
        self.send(signal.SIGTERM)
        end_all(family, grace)
        return True

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def end_all(processes: Iterable[Process], grace: float) -> None:
    """Wait until they have ended by themselves, and force those that have not.

    Parameters
    ----------
    processes : iterable of Process
        Only processes that this command, or a daemon of it, has started.
    grace : float
        Seconds to wait before the forced end.
    """
    known = list(dict.fromkeys(processes))
    if not wait_for_end(known, grace):
        for process in known:
            process.send(signal.SIGKILL)
        wait_for_end(known, grace)


def with_environment(name: str, value: str) -> list[Process]:
    """Return this account's processes that have ``name=value`` in their environment.

    Empty on systems without ``/proc``.
    """
    wanted = f"{name}={value}".encode()
    found = []
    for entry in _PROC.glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(Process.of(int(entry.name)))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def working_in(folder: Path) -> list[Process]:
    """Return this account's processes whose working directory is ``folder``.

    Empty on systems without ``/proc``.
    """
    found = []
    for entry in _PROC.glob("[0-9]*"):
        try:
            if os.path.samefile(entry / "cwd", folder):
                found.append(Process.of(int(entry.name)))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def wait_for_end(processes: list[Process], seconds: float) -> bool:
    """Wait until none of the processes runs; False if some still do after ``seconds``."""
    deadline = time.monotonic() + seconds
    while any(process.alive for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _start_time(pid: int) -> str:
    if (_PROC / "self").exists():
        fields = _stat(pid)
        return fields[19] if fields and fields[0] != "Z" else ""
    state, _, started = _ps("-o", "stat=,lstart=", "-p", str(pid)).strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()


def _parents() -> list[tuple[int, int]]:
    if (_PROC / "self").exists():
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        return [(pid, int(fields[1])) for pid in pids if (fields := _stat(pid))]
    rows = [line.split() for line in _ps("-A", "-o", "pid=,ppid=").splitlines()]
    return [(int(pid), int(parent)) for pid, parent in rows]


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()


def _stat(pid: int) -> list[str]:
    """Return the fields after the command's name: state, parent, ...; empty if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name, in parentheses, may itself hold spaces and parentheses.
    return text.rpartition(")")[2].split()


def _ps(*options: str) -> str:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout
