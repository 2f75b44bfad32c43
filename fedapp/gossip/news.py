"""Word of a change to all who wait for one, within one event loop."""

from __future__ import annotations

import asyncio


class News:
    """Counts changes; whoever has seen so many can wait for the next."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something has changed: wake all who wait."""
        self.count += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int, timeout: float | None = None) -> bool:
        """Return as soon as there were more than ``seen`` changes; False: not in time.

        Parameters
        ----------
        seen : int
            `count` before the look that found nothing.
        timeout : float, optional
            Seconds.
        """
        if self.count != seen:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)
        return True
