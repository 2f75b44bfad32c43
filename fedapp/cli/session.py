"""One run on the project's daemon: start, stream, wait for its real end, stop cleanly."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedapp.cli import flower, stream
from fedapp.cli.daemon import Daemon
from fedapp.cli.home import Home
from fedapp.cli.run_process import RunProcess

_END_DEADLINE = 90.0
_ASKED = 3  # times, until Flower answers
_NOT_BEGUN = ("pending", "starting")
_MOST_SLOW = 4  # times that Flower may start a run's process again, which was too slow to begin
_MOST_LOGS = 10


@dataclass(frozen=True)
class Request:
    """What ``flwr run`` is asked.

    Attributes
    ----------
    app : Path
        Folder of the app.
    overrides : Path
        TOML file with the settings that differ from the app's ``pyproject.toml``.
    simulation : str
        Text for ``--federation-config``.
    log : Path
        Gets every line.
    verbose : bool
        Show every line.
    """

    app: Path
    overrides: Path
    simulation: str
    log: Path
    verbose: bool = False


class DaemonLost(flower.FlowerError):
    """The daemon ended before the run."""


class Session:
    """A run in progress.

    Parameters
    ----------
    home : Home
    daemon : Daemon
        The home's daemon.
    request : Request
    show : callable
        Prints one line.
    """

    def __init__(
        self, home: Home, daemon: Daemon, request: Request, show: Callable[[str], None]
    ) -> None:
        self._home, self._request, self._show = home, request, show
        self._daemon = daemon.process
        self._process = RunProcess(home, daemon)
        self._lost = False
        self._cause = ""
        self._child: subprocess.Popen[str] | None = None
        self.run_id = ""

    def execute(self) -> flower.Run:
        """Run to the end and return how it ended.

        Raises
        ------
        DaemonLost
            If the daemon ends before the run.
        FlowerError
            If Flower refuses the run.
        Interrupted
            If a signal arrives; `stop` is then the caller's next step.
        """
        last = self._stream()
        if not self._daemon.alive:
            raise DaemonLost(
                "the Flower daemon ended during the run; see "
                f"{self._home.path / 'daemon.log'} and {self._request.log}"
            )
        if not self.run_id:
            raise flower.FlowerError(f"Flower did not start the run: {last or 'no reason given'}")
        if self._lost:
            flower.stop_run(self._home, self.run_id)
            self._process.end_family()
            return flower.Run(self.run_id, "finished:failed", self._process.why())
        ended = self.wait()
        broken = self._cause and ended.status == "finished:failed"
        return replace(ended, details=self._cause) if broken else ended

    def wait(self) -> flower.Run:
        """Wait until the daemon says that the run has ended.

        Raises
        ------
        FlowerError
            If it does not end soon: its output has, so there is nothing left to wait for.
        """
        deadline = time.monotonic() + _END_DEADLINE
        while True:
            rows = flower.list_runs(self._home, self.run_id)
            if rows and rows[0].finished:
                return rows[0]
            if time.monotonic() > deadline:
                state = rows[0].status if rows else "unknown"
                raise flower.FlowerError(
                    f"the run's output has ended but Flower calls it {state}; "
                    f"end everything with `fedapp stop` and look into {self._request.log}"
                )
            time.sleep(0.5)

    def stop(self) -> flower.Run:
        """End the run at the daemon and return how it ended.

        Raises
        ------
        FlowerError
            If the daemon does not do it.
        """
        self._end_child()
        if not self._daemon.alive:
            return flower.Run(self.run_id, "finished:stopped", "the daemon ended")
        if not self.run_id:  # interrupted between the start and the line that names the run
            stopped = stop_unfinished(self._home)
            return stopped[-1] if stopped else flower.Run("", "finished:stopped", "never started")
        rows = flower.list_runs(self._home, self.run_id)
        if rows and rows[0].finished:
            return rows[0]
        flower.stop_run(self._home, self.run_id)
        return self.wait()

    def _stream(self) -> str:
        self._child = _start(self._home, self._request)
        kept, last = stream.LineFilter(), ""
        assert self._child.stdout is not None
        threading.Thread(target=self._watch, args=(self._child,), daemon=True).start()
        with self._request.log.open("w", encoding="utf-8") as log:
            for line in self._child.stdout:
                log.write(line)
                log.flush()
                text = line.rstrip("\n")
                last = stream.plain(text).strip() or last
                self.run_id = self.run_id or stream.run_id(text)
                self._cause = self._cause or stream.cause(text)
                if self._request.verbose or (self.run_id and kept.keeps(text)):
                    self._show(text)
        self._child.wait()
        return last

    def _watch(self, child: subprocess.Popen[str]) -> None:
        # `flwr run` tries for ever to reach a daemon that has gone, and waits a minute for a run
        # whose process has.
        executing = True
        while child.poll() is None:
            if executing and self._process.has_gone():
                state = self._state()
                if state in _NOT_BEGUN and self._process.slow < _MOST_SLOW:
                    self._process.expect_another()
                elif state:  # else Flower does not answer now: a run that completed is not lost
                    executing = False
                    self._lost = not state.startswith("finished")
            if self._lost or not self._daemon.alive:
                self._end_child()
            time.sleep(1.0)

    def _state(self) -> str:
        for _ in range(_ASKED if self.run_id else 0):
            try:
                rows = flower.list_runs(self._home, self.run_id)
            except flower.FlowerError:
                continue  # the machine may be busy; if the daemon has gone, that will be noticed
            return rows[0].status if rows else ""
        return ""

    def _end_child(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()  # it only shows the stream
            self._child.wait()


def stop_unfinished(home: Home) -> list[flower.Run]:
    """Stop what an earlier, killed command left running; return those runs.

    Only to be called with the project's run lock held: no other command has a run then.
    """
    stopped = []
    for run in flower.list_runs(home):
        if not run.finished:
            flower.stop_run(home, run.run_id)
            stopped.append(replace(run, status="finished:stopped"))
    return stopped


def log_file(home: Home, name: str) -> Path:
    """Return the file for a run's full output; only the newest few are kept."""
    old = sorted(home.logs.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in old[: max(0, len(old) - _MOST_LOGS + 1)]:
        path.unlink(missing_ok=True)
    return home.logs / f"{name}.log"


def _start(home: Home, request: Request) -> subprocess.Popen[str]:
    command = [
        *(flower.program("flwr"), "run", str(request.app), flower.CONNECTION, "--stream"),
        *("--run-config", str(request.overrides)),
        *("--federation-config", request.simulation),
    ]
    try:
        return subprocess.Popen(
            command,
            cwd=home.neutral,
            env=flower.environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            start_new_session=True,  # Ctrl-C must reach only us: the run is ours to stop
        )
    except OSError as error:
        raise flower.FlowerError(f"`flwr run` cannot be started: {error}") from None
