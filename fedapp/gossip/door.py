"""Before a call is served: who calls, how many calls it has at a time, and that it says what for.

Every call, also one of a single message, is read as a stream: gRPC hands such a call over at once,
while one of a single message would wait for it, unseen and without an end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import grpc

from fedapp.gossip.callers import Context, abort, caller
from fedapp.gossip.counters import Counters
from fedapp.gossip.trust import Trust

Requests = AsyncIterator[bytes]


class Door:
    """Lets members in, a few calls at a time.

    Parameters
    ----------
    trust : Trust
    others : collection of str
        Who may call.
    places : int
        Calls of one peer at a time.
    patience : float
        Longest wait for a request, in seconds.
    counters : Counters
    """

    def __init__(
        self,
        trust: Trust,
        others: Collection[str],
        places: int,
        patience: float,
        counters: Counters,
    ) -> None:
        self._trust, self._others, self._counters = trust, others, counters
        self._places, self._patience = places, patience
        self.calls: Counter[str] = Counter()

    @asynccontextmanager
    async def call(
        self, requests: Requests, context: Context, places: int | None = None
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the caller's name and its request, or end the call.

        ``places`` replaces those of every call, for one that comes on top of them.
        """
        peer = await caller(context, self._trust, self._others)
        places = places or self._places
        if self.calls[peer] >= places:
            await abort(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"a peer may have {places} calls at a time",
            )
        self.calls[peer] += 1
        try:
            yield peer, await self._request(requests, context)
        finally:
            self.calls[peer] -= 1

    async def _request(self, requests: Requests, context: Context) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                data = await anext(requests)
        except TimeoutError:
            await abort(
                context,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no request came for {self._patience:g} s",
            )
        except StopAsyncIteration:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        self._counters.received(len(data))
        return data
