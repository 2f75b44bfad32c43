"""What the process of a run leaves behind is ended, also what nobody has seen start."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedapp.cli import daemon, run_process
from fedapp.cli.daemon import Daemon
from fedapp.cli.home import Home
from fedapp.cli.process import Process
from fedapp.cli.run_process import RunProcess

Start = Callable[[str, Home], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that sleeps under a name, with a home in its environment."""
    children: list[subprocess.Popen[bytes]] = []

    def started(name: str, home: Home) -> subprocess.Popen[bytes]:
        children.append(
            subprocess.Popen(
                [name, "60"], executable="/bin/sleep", env={"FLWR_HOME": str(home.flower)}
            )
        )
        return children[-1]

    yield started
    for child in children:
        child.kill()
        child.wait()


def test_ray_is_ended_and_nothing_else(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_RUN_GRACE", 0.1)
    monkeypatch.setattr(run_process, "_END_GRACE", 0.1)
    home, other = Home(tmp_path / "one"), Home(tmp_path / "two")
    ours = [start(name, home) for name in ("ray::IDLE", "/lib/ray/core/gcs_server")]
    spared = [start("flower-superlink", home), start("ray::IDLE", other)]
    watch = RunProcess(home, Daemon(Process.of(spared[0].pid), 1, ""))

    assert not watch.has_gone()
    watch.end_family()

    assert [child.poll() is None for child in ours] == [False, False]
    assert [child.poll() is None for child in spared] == [True, True]
