"""Work in a thread is over when whoever waited for it goes on, cancelled or not."""

import asyncio
import threading
import time

import pytest

from fedapp.gossip.threads import in_thread


def test_a_result_and_an_error_come_back():
    async def go():
        assert await in_thread(lambda a, b: a + b, 1, b=2) == 3
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 / 0)

    asyncio.run(go())


def test_a_cancellation_waits_for_the_end_of_the_work():
    begun, done = threading.Event(), threading.Event()

    def work():
        begun.set()
        time.sleep(0.2)
        done.set()

    async def go():
        task = asyncio.create_task(in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()

    asyncio.run(go())
