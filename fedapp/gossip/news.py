"""Word of a change to all who wait for one, within one event loop."""

from __future__ import annotations

import asyncio


class News:
    """Something that changes, and futures that are done at its next change."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def next(self) -> asyncio.Future[None]:
        """Return an awaitable that is done at the next change; take it before you look."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._next)  # a waiter that gives up does not end the others' wait

    def tell(self) -> None:
        """Wake all who wait."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
