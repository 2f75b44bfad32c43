"""A user account with a home of its own, in which `fedapp` runs as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tiny_app import write_app

from fedapp.cli import daemon
from fedapp.cli.home import Home

PATIENCE = 1800.0  # seconds for a command, on a machine that others use too
# The kernel's count of out-of-memory kills is the machine's: a test beside may have provoked one.
WHY_GONE = (
    "(it was killed, or it crashed|the kernel killed a process of this machine for lack of memory)"
)
COMMAND = [sys.executable, "-c", "from fedapp.cli import app; app(prog_name='fedapp')"]


class Desk:
    """One user account with a home of its own, working in one directory."""

    def __init__(self, root: Path) -> None:
        self.home, self.here = root / "home", root / "here"
        self.here.mkdir()
        self.environment = {**os.environ, "HOME": str(self.home), "COLUMNS": "200"}
        self.projects: list[Path] = []

    def app(self, name: str, saying: str = "hello") -> Path:
        folder = write_app(self.here.parent / name, saying)
        self.projects.append(folder)
        return folder

    def records(self, sites: Iterable[str], each: int) -> None:
        """Write ``d.csv``: ``each`` records of two classes at every site."""
        rows = [
            f"{site} patient {number} has {'pain' if number % 2 else 'no pain'},{number % 2},{site}"
            for site in sites
            for number in range(each)
        ]
        (self.here / "d.csv").write_text("\n".join(["text,label,site", *rows]) + "\n")

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.here, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def fedapp(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def daemon(self, project: Path) -> daemon.Daemon:
        found = daemon.read(Home(next((self.home / ".fedapp/projects").glob(f"{project.name}-*"))))
        assert found is not None
        return found

    def status(self, name: str) -> dict[str, object]:
        return json.loads((self.here / "runs" / name / "status.json").read_text())


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    """Read the output until a line holds ``words``."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"ended with {process.wait()} before saying {words!r}")
