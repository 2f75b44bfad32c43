"""The ``flwr`` program as this package calls it: environment, run list, stop, failure details."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from fedapp.cli.home import Home
from fedapp.errors import FedappError

CONNECTION = "fedapp"
_COMMAND_TIMEOUT = 60.0

_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else 15: any other program starves the training
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",  # else a warning for every fork
}


class FlowerError(FedappError):
    """Flower itself did not do what it was asked."""


def program(name: str) -> str:
    """Return the path of one of Flower's programs, beside the running Python.

    Raises
    ------
    FlowerError
        If Flower is not installed there.
    """
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise FlowerError(f"{path} is missing; set the project up again with `make setup`")
    return str(path)


def environment(home: Home) -> dict[str, str]:
    """Return the environment of the daemon and of every ``flwr`` command.

    ``PYTHONPATH`` is left out because code found there would be imported instead of the bundle's.
    """
    values = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    values |= _SETTINGS
    values["FLWR_HOME"] = str(home.flower)
    values["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), values.get("PATH", "")])
    for key in ("NO_PROXY", "no_proxy"):  # a proxy must not see, or break, the loopback traffic
        values[key] = ",".join(filter(None, [values.get(key, ""), "127.0.0.1", "localhost"]))
    return values


def write_connection(home: Home, port: int) -> None:
    """Tell ``flwr`` where this project's daemon is."""
    (home.flower / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )


@dataclass(frozen=True)
class Run:
    """One row of ``flwr list``."""

    run_id: str
    status: str  # pending, starting, running, finished:completed|failed|stopped
    details: str

    @property
    def finished(self) -> bool:
        """Whether the run has ended in any way."""
        return self.status.startswith("finished")


def list_runs(home: Home, run_id: str = "") -> list[Run]:
    """Return all runs the daemon knows, or the one with ``run_id``.

    Raises
    ------
    FlowerError
        If the daemon does not answer.
    """
    command = ["list", CONNECTION, "--format", "json"]
    command += ["--run-id", run_id] if run_id else []
    output = _flwr(home, command)
    try:
        answer = json.loads(output)
        rows = answer["runs"] if answer["success"] else []
        return [Run(row["run-id"], row["status"], row["status-details"]) for row in rows]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise FlowerError(f"`flwr list` gave an answer that is not understood: {error}") from None


def stop_run(home: Home, run_id: str) -> None:
    """Ask the daemon to end a run; one that ends by itself meanwhile is as good.

    Raises
    ------
    FlowerError
        If it refuses or does not answer.
    """
    try:
        _flwr(home, ["stop", run_id, CONNECTION])
    except FlowerError:
        if not any(run.finished for run in list_runs(home, run_id)):
            raise


def _flwr(home: Home, arguments: list[str]) -> str:
    command = [program("flwr"), *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=home.neutral,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT,
            start_new_session=True,  # Ctrl-C is for us; we still want this answer
        )
    except subprocess.TimeoutExpired:
        raise FlowerError(
            f"`flwr {arguments[0]}` gave no answer within {_COMMAND_TIMEOUT:.0f} s; "
            "end the daemon with `fedapp stop` and run again"
        ) from None
    if done.returncode != 0:
        said = _sentence(done.stderr) or _sentence(done.stdout) or "no reason given"
        raise FlowerError(f"`flwr {arguments[0]}` failed: {said}")
    return done.stdout


def _sentence(output: str) -> str:
    """Join what ``flwr`` says in a drawn box, else take the last line that says anything."""
    lines = [line for line in output.splitlines() if any(map(str.isalnum, line))]
    boxed = [line.strip().strip("│").strip() for line in lines if line.strip().startswith("│")]
    return " ".join(boxed) if boxed else (lines[-1].strip() if lines else "")
