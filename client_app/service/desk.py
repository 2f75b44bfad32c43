"""Which task is worked on: one at a time, one that waits, and no more."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from client_app.service.answer import Answer
from fedapp.errors import SiteUnavailable, TaskCancelled
from fedapp.exchange import Instruction

log = logging.getLogger(__name__)

PLACES = 2
"""One task that is worked on and one that waits."""


@dataclass(eq=False)
class Task:
    """One message of the coordinator on its way through the site.

    Attributes
    ----------
    id : str
    instruction : Instruction
        Its payloads are empty until they have arrived.
    done : Future of Answer
    listeners : int
        ClientApps that wait for the answer.
    progress : tuple of (int, int, float)
        Step, steps, loss.
    cancelled : threading.Event
    """

    id: str
    instruction: Instruction
    done: asyncio.Future[Answer]
    listeners: int = 0
    progress: tuple[int, int, float] = (0, 0, 0.0)
    began: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)

    def report(self, step: int, steps: int, loss: float) -> None:
        """Take progress; called by the thread that works, which ends here when cancelled."""
        self.progress = (step, steps, loss)
        self.check()

    def check(self) -> None:
        """Raise `TaskCancelled` if the task was called off."""
        if self.cancelled.is_set():
            raise TaskCancelled("the work was called off before its end")


Work = Callable[[Task], Answer]
T = TypeVar("T")


class Desk:
    """Gives tasks one after the other to the one thread that works.

    torch keeps the number of CPU threads by thread, so that it is always the same one.

    Parameters
    ----------
    work : callable
        Takes a task and returns its answer; failures are answers.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._tasks: dict[str, Task] = {}
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="site")
        self._running: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> list[Task]:
        """Tasks on the desk, the one that is worked on first."""
        return sorted(self._tasks.values(), key=lambda task: not task.began)

    def find(self, task_id: str) -> Task | None:
        """Return a task that is on the desk and not called off."""
        task = self._tasks.get(task_id)
        return None if task is None or task.cancelled.is_set() else task

    def admit(self, task_id: str, instruction: Instruction) -> Task:
        """Take a new task; `launch` or `drop` follows.

        A task of another round or run that nobody waits for any more is called off.

        Raises
        ------
        SiteUnavailable
            If there is no place.
        """
        for task in self.tasks:
            ours = (task.instruction.run, task.instruction.round)
            if not task.listeners and ours != (instruction.run, instruction.round):
                self.cancel(task)
        if sum(not task.cancelled.is_set() for task in self._tasks.values()) >= PLACES:
            raise SiteUnavailable("the site works on a task and has another waiting; ask again")
        task = Task(task_id, instruction, asyncio.get_running_loop().create_future())
        self._tasks[task_id] = task
        return task

    def launch(self, task: Task, instruction: Instruction) -> None:
        """Begin as soon as the tasks before it are done; ``instruction`` has its payloads."""
        task.instruction = instruction
        running = asyncio.create_task(self._run(task))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def drop(self, task: Task) -> None:
        """Forget a task that was never launched: its payloads did not arrive."""
        self._forget(task)
        if not task.done.done():
            task.done.set_exception(SiteUnavailable("the task's payloads did not arrive"))
            task.done.exception()  # nobody need be waiting

    def cancel(self, task: Task) -> None:
        """Call a task off: before it begins, or at its next step."""
        task.cancelled.set()
        if not task.began:
            task.instruction = replace(task.instruction, payloads={})

    async def lend(self, work: Callable[[], T], /) -> T:
        """Do something else in the thread that works, when the tasks before it are done."""
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self, patience: float) -> bool:
        """Call everything off; return whether the thread ended within ``patience`` seconds."""
        for task in self._tasks.values():
            self.cancel(task)
        if self._running:
            await asyncio.wait(self._running, timeout=patience)
        self._thread.shutdown(wait=False, cancel_futures=True)
        return not self._running and not self._turn.locked()

    async def _run(self, task: Task) -> None:
        async with self._turn:
            task.began = True
            loop = asyncio.get_running_loop()
            try:
                answer = await loop.run_in_executor(self._thread, self._work, task)
                if not task.done.done():
                    task.done.set_result(answer)
            except Exception as error:
                log.error("task %s", task.id[:16], exc_info=error)
                if not task.done.done():
                    task.done.set_exception(SiteUnavailable("the site failed; see its own log"))
                    task.done.exception()
            finally:
                self._forget(task)

    def _forget(self, task: Task) -> None:
        if self._tasks.get(task.id) is task:
            del self._tasks[task.id]
