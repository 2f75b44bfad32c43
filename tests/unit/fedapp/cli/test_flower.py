"""What is made of the answers of the ``flwr`` program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedapp.cli import flower
from fedapp.cli.home import Home

BOX = """
╭─ Error ──────────────────────────╮
│ The run has ended already, so    │
│ it cannot be stopped.            │
╰──────────────────────────────────╯
"""
Answer = Callable[[list[str]], tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def flwr(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Replace the program by a function of its arguments: exit code, stdout, stderr."""

    def install(answer: Answer) -> None:
        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess(command, *answer(command[1:]))

        monkeypatch.setattr(flower.subprocess, "run", run)

    return install


def runs(status: str) -> str:
    row = {"run-id": "7", "status": status, "status-details": ""}
    return json.dumps({"success": True, "runs": [row]})


def test_a_run_that_ends_before_it_is_stopped_is_stopped(home: Home, flwr: Any) -> None:
    asked = []

    def answer(arguments: list[str]) -> tuple[int, str, str]:
        asked.append(arguments[0])
        return (1, "", BOX) if arguments[0] == "stop" else (0, runs("finished:completed"), "")

    flwr(answer)
    flower.stop_run(home, "7")

    assert asked == ["stop", "list"]


def test_a_run_that_goes_on_is_an_error_in_flower_s_own_words(home: Home, flwr: Any) -> None:
    flwr(lambda a: (1, "", BOX) if a[0] == "stop" else (0, runs("running"), ""))

    with pytest.raises(flower.FlowerError) as caught:
        flower.stop_run(home, "7")

    assert str(caught.value) == (
        "`flwr stop` failed: The run has ended already, so it cannot be stopped."
    )


@pytest.mark.parametrize(
    ("stdout", "stderr", "said"),
    [
        ("x", "Traceback\nValueError: no port\n───\n", "ValueError: no port"),
        ("only here\n", "\n", "only here"),
        ("", "", "no reason given"),
    ],
)
def test_a_failure_is_one_sentence(
    stdout: str, stderr: str, said: str, home: Home, flwr: Any
) -> None:
    flwr(lambda _: (2, stdout, stderr))

    with pytest.raises(flower.FlowerError, match=f"`flwr list` failed: {said}$"):
        flower.list_runs(home)
