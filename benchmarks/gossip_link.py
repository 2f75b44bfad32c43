"""One update over one link against a bare gRPC stream of the same bytes: `benchmarks.gossip`."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks.process import MEGABYTE, reset_peak, resident
from fedapp.config_gossip import GossipSection
from fedapp.gossip import GossipNode, Member
from fedapp.gossip.calls import common_options
from fedapp.gossip.identity import Identity
from fedapp.gossip.names import dns_name
from fedapp.gossip.throwaway import Authority

RUN, LAYOUT = "0123456789abcdef" * 2, "ab" * 32
SERVE = "serve"  # the sender's process: not for people
_BARE = "/bench.Bare/Stream"
_LARGEST = 4 * 2**20  # bytes of a gRPC message
_WAYS = ("gossip", "bare")
_REST = 10.0  # seconds in which a sender is given up

Row = dict[str, Any]


def payload(size: int, round: int) -> bytes:
    """Return bytes that differ from round to round, and cost next to nothing to make."""
    seed = hashlib.sha512(str(round).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


# ---- the sender ----------------------------------------------------------------------------------


async def serve(folder: Path) -> None:
    """Publish what the standard input asks for, and stream the same bytes barely."""
    identity = _identity(folder, "sender")
    data = b""
    settings = GossipSection()

    async def stream(request: bytes, context: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(data), settings.chunk):
            await context.write(bytes(view[start : start + settings.chunk]))

    options = [*common_options(settings), ("grpc.max_send_message_length", _LARGEST)]
    server = grpc.aio.server(options=options)
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Bare", {"Stream": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", identity.server_credentials())
    await server.start()
    members = [Member("sender"), Member("receiver")]
    async with GossipNode(identity, members, RUN, folder / "sender-store") as node:
        _say({"bare": f"127.0.0.1:{port}", "node": node.address})
        held = 0.0
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            if "size" in order:
                data = payload(order["size"], order["round"])
                gc.collect()
                held = resident()
                reset_peak()
                await node.publish(order["round"], data, layout_digest=LAYOUT)
            extra = resident(peak=True) - held
            reset_peak()
            _say({"cpu": time.process_time(), "extra_mb": extra})
    await server.stop(0)


def _say(fact: Row) -> None:
    print(json.dumps(fact), flush=True)


class _Sender:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, folder: Path) -> _Sender:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.gossip", SERVE, "--folder", str(folder),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                cwd=Path(__file__).resolve().parents[1],
            )
        )  # fmt: skip

    async def hear(self) -> Row:
        assert self._process.stdout is not None
        fact: Row = json.loads(await self._process.stdout.readline())
        return fact

    async def ask(self, **order: int) -> Row:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.hear()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _REST)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


# ---- the receiver --------------------------------------------------------------------------------


async def link(sizes: list[int], repeats: int) -> list[Row]:
    """Measure every size."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        authority = Authority.create()
        for name in ("sender", "receiver"):
            authority.write(folder / name, name)
        sender = await _Sender.start(folder)
        try:
            return await _link(folder, sender, sizes, repeats)
        finally:
            await sender.end()


async def _link(folder: Path, sender: _Sender, sizes: list[int], repeats: int) -> list[Row]:
    where = await sender.hear()
    identity = _identity(folder, "receiver")
    members = [Member("sender", where["node"]), Member("receiver")]
    options = [
        *common_options(GossipSection()),
        ("grpc.ssl_target_name_override", dns_name("sender")),
        ("grpc.max_receive_message_length", _LARGEST),
    ]
    rows, round_ = [], 0
    async with (
        GossipNode(identity, members, RUN, folder / "receiver-store") as node,
        grpc.aio.secure_channel(where["bare"], identity.channel_credentials(), options) as channel,
    ):
        bare = channel.unary_stream(_BARE)

        async def by_stream() -> bytes:
            return b"".join([piece async for piece in bare(b"")])

        async def by_gossip() -> bytes:
            (update,) = await node.gather(round_, deadline=600, minimum=1)
            return update.payload

        for size in sizes:
            samples: dict[str, list[Row]] = {way: [] for way in _WAYS}
            for number in range(repeats + 1):  # the first is for warming up
                round_ += 1
                await sender.ask(size=size, round=round_)
                ways: list[tuple[str, Callable[[], Awaitable[bytes]]]]
                ways = [("gossip", by_gossip), ("bare", by_stream)]
                for way, receive in ways if number % 2 else ways[::-1]:
                    sample = await _sample(sender, receive, payload(size, round_))
                    if number:
                        samples[way].append(sample)
            rows.append(_row(size, samples))
            print(json.dumps(rows[-1]), flush=True)
    return rows


async def _sample(sender: _Sender, receive: Callable[[], Awaitable[bytes]], expected: bytes) -> Row:
    """Receive once: seconds, processor time on both sides, and memory in payloads."""
    size = len(expected) / MEGABYTE
    theirs = await sender.ask()
    gc.collect()
    held = resident()
    reset_peak()
    spent, began = time.process_time(), time.perf_counter()
    got = await receive()
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    peak = resident(peak=True) - held
    assert got == expected
    after = await sender.ask()
    return {
        "seconds": seconds,
        "receiver_cpu_ms_per_mb": spent * 1000 / size,
        "sender_cpu_ms_per_mb": (after["cpu"] - theirs["cpu"]) * 1000 / size,
        "receiver_peak_payloads": peak / size,
        "sender_peak_payloads": after["extra_mb"] / size,
    }


def _row(size: int, samples: dict[str, list[Row]]) -> Row:
    pairs = list(zip(samples["bare"], samples["gossip"], strict=True))
    ratios = [bare["seconds"] / gossip["seconds"] for bare, gossip in pairs]
    row: Row = {
        "megabytes": size / MEGABYTE,
        "throughput_of_bare": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    for way in _WAYS:
        middle = {
            key: statistics.median(sample[key] for sample in samples[way])
            for key in samples[way][0]
        }
        row[way] = {
            "mb_per_s": round(size / MEGABYTE / middle.pop("seconds"), 1),
            **{key: round(value, 2) for key, value in middle.items()},
        }
    return row


def _identity(folder: Path, name: str) -> Identity:
    files = (folder / name / f"{part}.pem" for part in ("certificate", "key", "authority"))
    return Identity.load(*files, name=name)
