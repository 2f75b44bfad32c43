"""A bad network between two nodes: a TCP proxy with a bandwidth, outages and a count of its bytes.

It stands where the link is, and so knows what crossed it, whatever the two ends count.
"""

from __future__ import annotations

import asyncio
import socket
import time
from types import TracebackType

PIECE = 8192  # bytes; at most this much is under way when a link goes silent
BUFFER = 65536  # of the sockets: a real link does not hold megabytes


class Bucket:
    """Tokens for ``rate`` bytes a second, at most `PIECE` of them saved up."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._free_at = rate, 0.0

    async def take(self, size: int) -> None:
        """Wait until ``size`` bytes may pass."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now - PIECE / self._rate) + size / self._rate
        await asyncio.sleep(max(0.0, self._free_at - now))


class SlowLink:
    """Passes connections to ``host:port`` on, see `silence`, `cut` and `mend`.

    Parameters
    ----------
    target : str
        ``host:port`` of the node behind the link.
    megabits : float, optional
        Bandwidth of each direction, in Mbit/s; None: as fast as it goes.

    Attributes
    ----------
    up, down : int
        Bytes that reached the target and that came back from it.
    connections : int
        How many were made so far.
    """

    def __init__(self, target: str, megabits: float | None = None) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        rate = None if megabits is None else megabits * 1e6 / 8
        self._buckets = (Bucket(rate), Bucket(rate))
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.up = self.down = self.connections = 0

    async def __aenter__(self) -> SlowLink:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where to connect instead of the target."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def crossed(self) -> int:
        """Bytes of both directions."""
        return self.up + self.down

    def silence(self) -> None:
        """Nothing passes any more and nobody is told, as when a cable is pulled out."""
        self._open.clear()

    def cut(self) -> None:
        """Every connection is reset, and new ones are too."""
        self._refusing = True
        for writer in list(self._writers):
            writer.transport.abort()

    def mend(self) -> None:
        """Pass on again."""
        self._refusing = False
        self._open.set()

    async def passed(self, size: int, patience: float = 60.0) -> None:
        """Wait until ``size`` bytes have crossed.

        Raises
        ------
        TimeoutError
        """
        async with asyncio.timeout(patience):
            while self.crossed < size:
                await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        own = [writer]
        self._writers.add(writer)
        try:
            if self._refusing:
                return
            await self._open.wait()
            there, away = await asyncio.open_connection(*self._target, limit=PIECE)
            own.append(away)
            self._writers.add(away)
            for one in own:
                raw = one.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                one.transport.set_write_buffer_limits(PIECE)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, away, "up", self._buckets[0]))
                both.create_task(self._pump(there, writer, "down", self._buckets[1]))
        except* (OSError, asyncio.CancelledError):
            pass  # the link is what is bad here
        finally:
            for one in own:
                one.transport.abort()
                self._writers.discard(one)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: str,
        bucket: Bucket,
    ) -> None:
        while data := await reader.read(PIECE):
            await bucket.take(len(data))
            await self._open.wait()
            writer.write(data)
            await writer.drain()
            setattr(self, way, getattr(self, way) + len(data))
        writer.write_eof()
