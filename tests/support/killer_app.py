"""A Flower app that is the product's, except that it SIGKILLs its whole run at a named point."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.cli.process import Process

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SERVER = '''
"""The product's ServerApp, armed as a file says."""

import json
import os
import signal
from pathlib import Path

from flwr.serverapp import ServerApp

import server_app.app as product
from fedapp.cli import daemon
from fedapp.cli.home import Home
from fedapp.cli.process import Process, with_environment
from killer.kill_points import BETWEEN_PEERS, POINTS, Arming

PLAN = Path("THE PLAN")
app = ServerApp()


def everybody():
    """All processes of this run, parents before children, and this one last."""
    home = Home(Path(os.environ["FLWR_HOME"]).parent)
    command = Process.of(int((home.path / "run.lock").read_text()))
    superlink = daemon.read(home).process
    family = [command, *command.descendants(), superlink, *superlink.descendants()]
    family += with_environment("FLWR_HOME", str(home.flower))
    own = Process.of(os.getpid())
    return [process for process in dict.fromkeys(family) if process != own] + [own]


def kill(plan):
    family = everybody() if plan["all"] else [Process.of(os.getpid())]
    rows = [{"pid": p.pid, "started": p.started, "command": p.command()} for p in family]
    with open(plan["record"], "w") as stream:
        json.dump(rows, stream)
        stream.flush()
        os.fsync(stream.fileno())
    for process in family:
        process.send(signal.SIGKILL)


@app.main()
def main(grid, context):
    plan = json.loads(PLAN.read_text())
    {**POINTS, **BETWEEN_PEERS}[plan["point"]](Arming(plan["round"], lambda: kill(plan)))
    product.main(grid, context)
'''

CLIENT = '''
"""The product's ClientApp."""

import client_app.app as product

app = product.app
'''

_COMPONENTS = {
    'serverapp = "server_app.app:app"': 'serverapp = "killer.app:app"',
    'clientapp = "client_app.app:app"': 'clientapp = "killer.client:app"',
}


@dataclass(frozen=True)
class Victim:
    """A process that a killing run had, and the signal that ended it.

    Attributes
    ----------
    process : Process
    command : str
    signal : int or None
        None if somebody else collected it.
    """

    process: Process
    command: str
    signal: int | None


class KillerApp:
    """The app in ``folder``; `arm` says where its next run kills itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._plan, self._record = folder, folder / "plan.json", folder / "killed.json"
        (folder / "killer").mkdir(parents=True)
        points = (HERE / "kill_points.py").read_text(encoding="utf-8")
        server = SERVER.replace("THE PLAN", str(self._plan))
        files = {"__init__": "", "app": server, "client": CLIENT, "kill_points": points}
        for name, code in files.items():
            (folder / "killer" / f"{name}.py").write_text(code, encoding="utf-8")
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for old, new in _COMPONENTS.items():
            assert old in text
            text = text.replace(old, new)
        text = text.replace("fab-include = [", 'fab-include = ["killer/*.py", ')
        (folder / "pyproject.toml").write_text(text, encoding="utf-8")
        for package in ("fedapp", "server_app", "client_app"):
            source, ignored = ROOT / package, shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / package, ignore=ignored)

    def arm(self, point: str, round: int, *, everybody: bool = True) -> None:
        """Choose the point; with ``everybody`` false only the server's process is killed."""
        self._record.unlink(missing_ok=True)
        plan: dict[str, Any] = {"point": point, "round": round, "all": everybody}
        self._plan.write_text(json.dumps({**plan, "record": str(self._record)}))

    def victims(self) -> list[Victim]:
        """Return whom the run killed, all of them gone; to be called within `adopting_orphans`."""
        deadline = time.monotonic() + 30
        found = []
        for row in json.loads(self._record.read_text()):
            process = Process(row["pid"], row["started"])
            number = _collect(process, deadline)
            found.append(Victim(process, row["command"], number))
        return found


class adopting_orphans:
    """While it lasts, processes whose parent dies become children of this one (Linux).

    Only a parent learns which signal ended a process.
    """

    def __enter__(self) -> None:
        _subreaper(True)

    def __exit__(self, *error: object) -> None:
        _subreaper(False)


def _subreaper(on: bool) -> None:
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _collect(process: Process, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        try:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:  # collected by somebody else, or to be adopted in a moment
            if Process.of(process.pid).started not in ("", process.started):
                return None  # the number is another process's by now
            if not Path(f"/proc/{process.pid}").exists():
                return None
        else:
            if pid:
                return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        time.sleep(0.02)
    raise AssertionError(f"process {process.pid} is still there: {process.command()}")
