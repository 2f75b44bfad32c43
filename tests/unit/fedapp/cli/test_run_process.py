"""What the process of a run leaves behind is ended, also what nobody has seen start."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from begun import begun

from fedapp import kernel
from fedapp.cli import daemon, run_process
from fedapp.cli.daemon import Daemon
from fedapp.cli.home import Home
from fedapp.cli.process import Process
from fedapp.cli.run_process import RunProcess

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that sleeps under a name, in the working directory of a home."""
    children: list[subprocess.Popen[bytes]] = []

    def started(name: str, home: Home, **environment: str) -> subprocess.Popen[bytes]:
        home.neutral.mkdir(parents=True, exist_ok=True)
        children.append(
            subprocess.Popen(
                [name, "60"], executable="/bin/sleep", cwd=home.neutral, env=environment
            )
        )
        return begun(children[-1])

    yield started
    for child in children:
        child.kill()
        child.wait()


def test_ray_is_ended_and_nothing_else(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is known by its working directory alone: its title lies over its environment."""
    monkeypatch.setattr(daemon, "_RUN_GRACE", 0.1)
    monkeypatch.setattr(run_process, "_END_GRACE", 0.1)
    home, other = Home(tmp_path / "one"), Home(tmp_path / "two")
    ours = [start("ray::IDLE", home), start("/lib/ray/core/gcs_server", home)]
    ours += [start("/ray/raylet", other, FLWR_HOME=str(home.flower))]
    spared = [start("flower-superlink", home), start("ray::IDLE", other)]
    watch = RunProcess(home, Daemon(Process.of(spared[0].pid), 1, ""))

    assert not watch.has_gone()
    watch.end_family()

    assert [child.poll() is None for child in ours] == [False] * 3
    assert [child.poll() is None for child in spared] == [True] * 2


class Executors:
    """A daemon whose runs' processes are what a test says."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def runs(self) -> list[Process]:
        found = [Process.of(process.pid) for process in self.processes]
        return [process for process in found if process.alive]


def test_a_process_that_flower_starts_again_has_not_gone(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_process, "_SETTLE", 0.0)
    monkeypatch.setattr(kernel, "_COUNTERS", ())  # which count what others on this machine do
    home, executors = Home(tmp_path), Executors()
    watch = RunProcess(home, executors)  # type: ignore[arg-type]

    def end() -> None:
        executors.processes[0].kill()
        executors.processes.pop(0).wait()

    def gone() -> bool:
        return [watch.has_gone(), watch.has_gone()][1]

    assert not gone()  # it has not been there yet
    executors.processes = [start("flwr-simulation", home)]
    assert not gone()
    executors.processes.append(start("flwr-simulation", home))  # the first one was too slow
    end()
    assert not gone()
    end()
    assert gone()
    assert "it was killed, or it crashed" in watch.why()
    watch.expect_another()
    assert not gone()
    executors.processes = [start("flwr-simulation", home)]
    assert not gone()
    end()
    assert gone()
    assert "Flower gives its process 30 s to start" in watch.why()
    assert "2 times" in watch.why()
