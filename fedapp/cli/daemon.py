"""The local Flower daemon (SuperLink in simulation mode) of one project: start, find, end."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from fedapp import atomic
from fedapp.cli import flower
from fedapp.cli.home import Home, locked, shared_folder
from fedapp.cli.process import Process, end_all, with_environment, working_in

T = TypeVar("T")

_START_DEADLINE = 60.0
_END_GRACE = 15.0
_RUN_GRACE = 10.0
_ATTEMPTS = 3


@dataclass(frozen=True)
class Daemon:
    """A daemon that this command line started.

    Attributes
    ----------
    process : Process
    port : int
        On 127.0.0.1.
    build : str
        Python, Flower and visible GPUs it was started with; others need another daemon.
    """

    process: Process
    port: int
    build: str

    def runs(self) -> list[Process]:
        """Return the processes that execute runs."""
        return [run for executor in self.process.children() for run in executor.children()]

    def executing(self) -> list[Process]:
        """Return the processes that execute runs, each followed by all that it has started."""
        return [process for run in self.runs() for process in (run, *run.descendants())]

    def end_runs(self, stop: Callable[[], T]) -> T:
        """Call ``stop``, which tells Flower to end the runs, and see that their processes do.

        Flower lets a run go on for seconds, in which it could still write to its folder.
        """
        family = self.executing()
        result = stop()
        family += self.executing()
        for process in family:
            if "flwr-simulation" in process.command():
                process.send(signal.SIGTERM)
        end_all(family, _RUN_GRACE)
        return result


def ensure(home: Home) -> tuple[Daemon, bool]:
    """Return the project's daemon, and whether it had to be started.

    Raises
    ------
    FlowerError
        If it does not get ready within a minute.
    """
    with locked(home.path / "daemon.lock"):
        daemon = read(home)
        if daemon is not None and daemon.process.alive:
            if daemon.build == _build() and _healthy(daemon.port):
                return daemon, False
            daemon.process.terminate(_END_GRACE)
        return _start(home), True


def end(home: Home) -> Daemon | None:
    """End the daemon that was started for this project, if it still runs."""
    with locked(home.path / "daemon.lock"):
        daemon = read(home)
        _record(home).unlink(missing_ok=True)
        if daemon is None or not daemon.process.terminate(_END_GRACE):
            return None
        return daemon


def end_leftovers(home: Home) -> None:
    """End what a daemon that was killed has left running: it would write on, unsupervised."""
    for process in with_environment("FLWR_HOME", str(home.flower)):
        if any(name in process.command() for name in ("flower-superexec", "flwr-simulation")):
            process.terminate(_RUN_GRACE)
    end_ray(home)


def end_ray(home: Home) -> None:
    """End what is left of Ray when the process that executed a run has gone.

    Ray's own processes end when that one does, most often within seconds. Only to be called when
    no other run of the project is in progress.
    """
    # A worker of Ray writes its title over its environment, as far as others can see it.
    left = {*with_environment("FLWR_HOME", str(home.flower)), *working_in(home.neutral)}
    end_all([process for process in left if _is_rays(process.command())], _RUN_GRACE)


def read(home: Home) -> Daemon | None:
    """Return the recorded daemon, running or not."""
    try:
        stored = json.loads(_record(home).read_text(encoding="utf-8"))
        process = Process(int(stored["pid"]), str(stored["started"]))
        return Daemon(process, int(stored["port"]), str(stored["build"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never started, or the record was cut short: nothing to rely on


def _is_rays(command: str) -> bool:
    return "/ray/" in command or command.startswith("ray::")  # how its workers call themselves


def _record(home: Home) -> Path:
    return home.path / "daemon.json"


def _build() -> str:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all")  # runs inherit it from the daemon
    return f"{sys.executable} flwr {metadata.version('flwr')} GPUs {gpus}"


def _start(home: Home) -> Daemon:
    end_leftovers(home)
    # A fresh daemon knows no earlier run, so what they left in Flower's home is rubbish.
    for leftover in ("apps", "runtime-envs"):
        shutil.rmtree(home.flower / leftover, ignore_errors=True)
    log = home.path / "daemon.log"
    # No two projects choose a port at the same time, so none can answer for the other.
    with locked(shared_folder() / "port.lock"):
        for _ in range(_ATTEMPTS):
            daemon = _try_start(home, _free_port(), log)
            if daemon is not None:
                return daemon
    raise flower.FlowerError(
        f"the local Flower daemon did not get ready within {_START_DEADLINE:.0f} s; see {log}"
    )


def _try_start(home: Home, port: int, log: Path) -> Daemon | None:
    command = [
        *(flower.program("flower-superlink"), "--insecure", "--simulation"),
        *("--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)),
        "--disable-runtime-dependency-installation",
    ]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=home.neutral,
            env=flower.environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    daemon = Daemon(Process.of(child.pid), port, _build())
    # Recorded before it is ready: `fedapp stop` finds it even if we are killed meanwhile.
    record = {**asdict(daemon.process), "port": port, "build": daemon.build}
    atomic.write_text(_record(home), json.dumps(record))
    deadline = time.monotonic() + _START_DEADLINE
    try:
        while time.monotonic() < deadline:
            if child.poll() is not None:
                return None
            if _healthy(port):
                flower.write_connection(home, port)
                return daemon
            time.sleep(0.1)
    except BaseException:
        daemon.process.terminate(_END_GRACE)
        raise
    daemon.process.terminate(_END_GRACE)
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
