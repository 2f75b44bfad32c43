"""A site's service whose work waits for the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from site_desk import Service, echo, write_site

from client_app.failures import to_failure
from client_app.service.answer import Answer
from client_app.service.desk import Task
from client_app.service.remote import RemoteSite
from fedapp.errors import TaskCancelled
from fedapp.exchange import Instruction, Reply


class Gate:
    """Work that waits for the test, and counts."""

    def __init__(self) -> None:
        self.open, self.began = threading.Event(), threading.Event()
        self.calls: list[Instruction] = []

    def __call__(self, task: Task) -> Answer:
        self.calls.append(task.instruction)
        self.began.set()
        try:
            for step in range(1, 2000):
                task.report(step, 2000, 0.5)
                if self.open.wait(0.01):
                    return echo(task)
        except TaskCancelled as error:
            asked = task.instruction
            failure = to_failure(error, asked.site, asked.round)
            return Answer.of(Reply(asked.site, asked.round, asked.action, failure=failure))
        raise AssertionError("nobody opened the gate")


def in_thread(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Start a call and return a function that waits for its result."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(call(*args)))
    thread.start()

    def result() -> Any:
        thread.join(30)
        return got[0]

    return result


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Look until it is so; fail after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def gated(tmp_path: Path, more: str = "") -> tuple[Gate, Service]:
    """Return a gate and the service, not begun yet, whose work it is."""
    gate = Gate()
    return gate, Service(write_site(tmp_path, more=more), gate)


def one_runs_and_one_waits(
    service: Service, gate: Gate, asked: Sequence[Instruction]
) -> list[Callable[[], Any]]:
    """Ask twice; return functions that wait for the two replies."""
    replies = []
    for number, each in enumerate(asked, 1):
        replies.append(in_thread(RemoteSite(service.address).execute, each))
        assert gate.began.wait(10)
        wait_until(lambda number=number: len(service.desk.tasks) == number)
    return replies
