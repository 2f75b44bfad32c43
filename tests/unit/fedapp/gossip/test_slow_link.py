"""The bad network of the tests does what it says: otherwise they prove nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from slow_link import PIECE, SlowLink


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def dial(link: SlowLink) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = link.address.split(":")
    return await asyncio.open_connection(host, int(port))


def test_it_passes_everything_on_and_counts_it() -> None:
    async def main() -> None:
        async with echo() as target, SlowLink(target) as link:
            reader, writer = await dial(link)
            sent = bytes(range(256)) * 4000
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
            writer.close()
            assert (link.up, link.down, link.connections) == (len(sent), len(sent), 1)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_its_bandwidth_is_what_was_asked_for() -> None:
    async def main() -> None:
        async with echo() as target, SlowLink(target, megabits=4) as link:
            reader, writer = await dial(link)
            began = time.monotonic()
            writer.write(bytes(200_000))
            await reader.readexactly(200_000)
            # A lower limit alone: a busy machine is slower, never faster.
            assert time.monotonic() - began > (200_000 - 2 * PIECE) * 8 / 4e6

    asyncio.run(asyncio.wait_for(main(), 30))


def test_silence_tells_nobody_and_loses_nothing() -> None:
    async def main() -> None:
        async with echo() as target, SlowLink(target) as link:
            reader, writer = await dial(link)
            writer.write(b"one")
            assert await reader.readexactly(3) == b"one"
            link.silence()
            writer.write(b"two")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.3)
            link.mend()
            assert await reader.readexactly(3) == b"two"

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_cut_ends_old_and_new_connections_until_it_is_mended() -> None:
    async def ended(reader: asyncio.StreamReader) -> bool:
        try:
            return await asyncio.wait_for(reader.read(1), 5) == b""
        except ConnectionError:
            return True

    async def main() -> None:
        async with echo() as target, SlowLink(target) as link:
            reader, _ = await dial(link)
            await asyncio.sleep(0.05)
            link.cut()
            assert await ended(reader)
            reader, _ = await dial(link)
            assert await ended(reader)
            link.mend()
            reader, writer = await dial(link)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"

    asyncio.run(asyncio.wait_for(main(), 30))
