"""The Flower ServerApp: settings, run folder, strategy, round loop, and a true final status."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import InMemoryGrid

from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError, FedappError
from fedapp.registry import METHODS, load_half
from fedapp.results import RunFolder
from fedapp.run_lock import RunLock
from server_app.log import log
from server_app.rounds import RoundLoop
from server_app.strategies.base import BaseStrategy

app = ServerApp()

_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
}


# Ctrl-C; `flwr stop`, or the executor's SIGTERM; `flwr stop` again, when the SuperLink's answer to
# a message tells of it before Flower's heartbeat does.
_TOLD_TO_END = (KeyboardInterrupt, SystemExit, RunNotRunningException)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the settings say.

    Raises
    ------
    FedappError
        After its sentence and exit code are in ``status.json``, so that Flower marks the run
        failed.
    """
    try:
        config = RunConfig.from_flat(context.run_config)
        if config.resume:
            folder = RunFolder.open(Path(config.resume))
            folder.check_adapter()
            folder.point_latest()
        else:
            folder = RunFolder.create(config)
    except (ConfigError, CheckpointError) as error:
        log(f"error: {error}")
        raise
    run(grid, config, folder, context.run_id)


def run(grid: Grid, config: RunConfig, folder: RunFolder, run_id: int) -> None:
    """Run with the settings in ``folder``; see `main`."""
    log(f"run folder: {folder.path}")
    with status_of(folder, run_id):
        loop = RoundLoop(
            grid=grid,
            strategy=build_strategy(config),
            folder=folder,
            simulated=isinstance(grid, InMemoryGrid),
        )
        loop.run()
    log(f"run folder: {folder.path}")


def build_strategy(config: RunConfig) -> BaseStrategy:
    """Return the server half of the method."""
    half = load_half(METHODS[config.method].server)
    strategy: BaseStrategy = half(config)
    return strategy


def _judge(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and its sentence."""
    if isinstance(error, FedappError):
        return error.exit_code, str(error)
    if isinstance(error, OSError) and error.errno in _DISK:
        reason = error.strerror or str(error)
        return CheckpointError.exit_code, (
            f"{error.filename or 'the run folder'} cannot be read or written: {reason}; the newest "
            "checkpoint is intact, mend this and resume"
        )
    if isinstance(error, _TOLD_TO_END):
        return 130, "the run was told to end; resume it from its newest checkpoint"
    return 1, f"{type(error).__name__}: {error}"


@contextmanager
def status_of(folder: RunFolder, run_id: int) -> Iterator[None]:
    """Keep ``status.json`` true, whatever happens inside, and other processes away.

    Raises
    ------
    CheckpointError
        If another process works in the folder. Nothing is changed there then.
    """
    try:
        lock = RunLock(folder.path)
    except CheckpointError as error:
        log(f"error: {error}")
        raise
    try:
        folder.begin_status(run_id)
        yield
    except BaseException as error:
        stopped = isinstance(error, _TOLD_TO_END)
        code, sentence = _judge(error)
        log(f"error: {sentence}")
        log(f"run folder: {folder.path}")
        try:
            folder.end_status("stopped" if stopped else "failed", sentence, code, run_id)
        except OSError as problem:  # a full disk, most often what ended the run
            log(f"warning: {folder.status_file} was not written: {problem.strerror}")
        raise
    else:
        folder.write_status("completed", run_id=run_id)
    finally:
        lock.release()
