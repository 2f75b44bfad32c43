"""The gossip layer against bare gRPC, with many nodes, and at rest.

Usage:
    python -m benchmarks.gossip
    python -m benchmarks.gossip link --megabytes 1 --repeats 3 --output /tmp/gossip.json

Three parts, any of which can be asked for alone:

link
    One update from one process to another over loopback: signed, verified, written to disk and read
    again, against a bare gRPC stream of the same bytes in the same chunks, TLS with certificates on
    both sides. They take turns; the figure is the median of the ratios of neighbours in time.
    Memory: how far the receiver's peak lies above what it had before, in payloads.
scale
    Many nodes in one process, k-regular: bytes and messages of a node for several N and k.
idle
    `fedapp peer` with two neighbours that do nothing: resident memory (in all; RssAnon, its own;
    RssFile, pages of libraries, which processes share), and its share of a core.

Results: benchmarks/results/gossip.json; parts that were not asked for stay as they are there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedapp.config_gossip import GossipSection
from fedapp.gossip import GossipNode, Member
from fedapp.gossip.identity import Identity
from fedapp.gossip.local import LocalNodes
from fedapp.gossip.names import dns_name
from fedapp.gossip.throwaway import Authority

RESULT = Path(__file__).resolve().parent / "results" / "gossip.json"
RUN, LAYOUT = "0123456789abcdef" * 2, "ab" * 32
MEGABYTE = 10**6
BARE = "/bench.Bare/Stream"
LARGEST = 4 * 2**20  # bytes of a gRPC message
ROUNDS = 10**6
PARTS = ("link", "scale", "idle")
SERVE = "serve"  # the other process of `link`: not for people


def payload(size: int, round_: int) -> bytes:
    """Return bytes that differ from round to round, and cost next to nothing to make."""
    seed = hashlib.sha512(str(round_).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def resident(peak: bool = False) -> float:
    """Return this process's resident memory, or its peak since `reset_peak`, in MB."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024 / MEGABYTE
    return float("nan")


def reset_peak() -> None:
    """Begin to measure the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


# ---- link ----------------------------------------------------------------------------------------


async def serve(folder: Path) -> None:
    """Be the sender: publish what the standard input asks for, and stream the same bytes barely."""
    identity = _identity(folder, "sender")
    data = b""
    chunk = GossipSection().chunk

    async def stream(request: bytes, context: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(data), chunk):
            await context.write(bytes(view[start : start + chunk]))

    server = grpc.aio.server(options=[("grpc.max_send_message_length", LARGEST)])
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Bare", {"Stream": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", identity.server_credentials())
    await server.start()
    members = [Member("sender"), Member("receiver")]
    async with GossipNode(identity, members, RUN, folder / "sender-store") as node:
        print(json.dumps({"bare": f"127.0.0.1:{port}", "node": node.address}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            data = payload(order["size"], order["round"])
            await node.publish(order["round"], data, layout_digest=LAYOUT)
            print("published", flush=True)
    await server.stop(0)


async def link(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """Measure every size."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        authority = Authority.create()
        for name in ("sender", "receiver"):
            authority.write(folder / name, name)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.gossip", SERVE, "--folder", place,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
        try:
            assert process.stdout is not None
            where = json.loads(await process.stdout.readline())
            return await _link(folder, process, where, sizes, repeats)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await asyncio.wait_for(process.wait(), 30)


async def _link(
    folder: Path,
    process: asyncio.subprocess.Process,
    where: dict[str, str],
    sizes: list[int],
    repeats: int,
) -> list[dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    identity = _identity(folder, "receiver")
    members = [Member("sender", where["node"]), Member("receiver")]
    rows, round_ = [], 0
    options = [
        ("grpc.ssl_target_name_override", dns_name("sender")),
        ("grpc.max_receive_message_length", LARGEST),
    ]
    async with (
        GossipNode(identity, members, RUN, folder / "receiver-store") as node,
        grpc.aio.secure_channel(where["bare"], identity.channel_credentials(), options) as channel,
    ):
        bare = channel.unary_stream(BARE)

        async def by_stream(expected: bytes) -> float:
            began = time.perf_counter()
            got = b"".join([piece async for piece in bare(b"")])
            seconds = time.perf_counter() - began
            assert got == expected
            return seconds

        async def by_gossip(expected: bytes) -> float:
            began = time.perf_counter()
            (update,) = await node.gather(round_, deadline=600, minimum=1)
            seconds = time.perf_counter() - began
            assert update.payload == expected
            return seconds

        for size in sizes:
            times: dict[str, list[float]] = {"gossip": [], "bare": []}
            peaks: dict[str, list[float]] = {"gossip": [], "bare": []}
            for number in range(repeats + 1):  # the first is for warming up
                round_ += 1
                process.stdin.write(json.dumps({"size": size, "round": round_}).encode() + b"\n")
                await process.stdin.drain()
                assert await process.stdout.readline() == b"published\n"
                ways: list[tuple[str, Callable[[bytes], Awaitable[float]]]]
                ways = [("gossip", by_gossip), ("bare", by_stream)]
                for way, measure in ways if number % 2 else ways[::-1]:
                    expected = payload(size, round_)
                    gc.collect()
                    before = resident()
                    reset_peak()
                    seconds = await measure(expected)
                    if number:
                        times[way].append(seconds)
                        peaks[way].append((resident(peak=True) - before) / (size / MEGABYTE))
            rows.append(_link_row(size, times, peaks))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _link_row(
    size: int, times: dict[str, list[float]], peaks: dict[str, list[float]]
) -> dict[str, Any]:
    ratios = [b / g for g, b in zip(times["gossip"], times["bare"], strict=True)]
    return {
        "megabytes": size / MEGABYTE,
        "throughput_of_bare": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        **{
            f"{way}_mb_per_s": round(size / MEGABYTE / statistics.median(taken), 1)
            for way, taken in times.items()
        },
        **{
            f"{way}_peak_payloads": round(statistics.median(found), 2)
            for way, found in peaks.items()
        },
    }


def _identity(folder: Path, name: str) -> Identity:
    files = (folder / name / f"{part}.pem" for part in ("certificate", "key", "authority"))
    return Identity.load(*files, name=name)


# ---- scale ---------------------------------------------------------------------------------------


async def scale(counts: list[int], degrees: list[int], size: int) -> list[dict[str, Any]]:
    """Run two rounds of every number of nodes and of neighbours."""
    rows = []
    for count in counts:
        for degree in degrees:
            with tempfile.TemporaryDirectory() as place:
                rows.append(await _scale(Path(place), count, degree, size))
            print(json.dumps(rows[-1]), flush=True)
    return rows


async def _scale(folder: Path, count: int, degree: int, size: int) -> dict[str, Any]:
    gc.collect()
    before = resident()
    reset_peak()
    names = [f"site {number:03}" for number in range(count)]
    seconds, heard = [], []
    async with LocalNodes(names, folder, topology="k-regular", degree=degree) as nodes:
        for round_ in (1, 2):  # in the first, connections are made
            began = time.perf_counter()
            for place, node in enumerate(nodes.values()):
                data = payload(size, round_ * 10_000 + place)
                await node.publish(round_, data, layout_digest=LAYOUT)
            got = await asyncio.gather(
                *(node.gather(round_, deadline=300, minimum=degree) for node in nodes.values())
            )
            seconds.append(time.perf_counter() - began)
            heard = [len(updates) for updates in got]
        traffic = [node.traffic.rounds[2] for node in nodes.values()]
        peak = resident(peak=True)
    return {
        "nodes": count,
        "neighbours": degree,
        "payload_bytes": size,
        "every_neighbour_heard": set(heard) == {degree},
        "received_bytes_a_node": round(statistics.fmean(t.received_bytes for t in traffic)),
        "received_payloads_a_node": round(
            statistics.fmean(t.payload_received for t in traffic) / size, 3
        ),
        "messages_a_node": round(
            statistics.fmean(t.sent_messages + t.received_messages for t in traffic), 1
        ),
        "seconds_first_round": round(seconds[0], 2),
        "seconds_second_round": round(seconds[1], 2),
        "memory_mb_a_node": round((peak - before) / count, 2),
        "memory_mb": round(peak, 1),
    }


# ---- idle ----------------------------------------------------------------------------------------


async def idle(seconds: float) -> dict[str, Any]:
    """Watch the middle one of three `fedapp peer` that have nothing to do."""
    with tempfile.TemporaryDirectory() as place:
        sites = _sites(Path(place), 3)
        processes = []
        command = "from fedapp.cli import app; app(prog_name='fedapp')"
        try:
            for site in sites:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", command, "peer", "--config", str(site),
                    stdout=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
                processes.append(process)
            await asyncio.sleep(20)  # until they have found each other, and have settled
            watched = Path(f"/proc/{processes[1].pid}")
            before, began = _cpu(watched), time.monotonic()
            await asyncio.sleep(seconds)
            share = (_cpu(watched) - before) / (time.monotonic() - began)
            memory = _memory(watched)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
            codes = [await asyncio.wait_for(process.wait(), 10) for process in processes]
    row = {"seconds": seconds, "share_of_a_core": round(share, 5), **memory, "exit_codes": codes}
    print(json.dumps(row), flush=True)
    return row


def _sites(folder: Path, count: int) -> list[Path]:
    authority, ports = Authority.create(), _free_ports(count)
    text = f'run = "{RUN}"\n'
    for number, port in enumerate(ports):
        text += f'[[members]]\nname = "site {number}"\naddress = "127.0.0.1:{port}"\n'
    (folder / "consortium.toml").write_text(text)
    files = []
    for number, port in enumerate(ports):
        here = folder / f"site-{number}"
        authority.write(here, f"site {number}")
        files.append(here / "site.toml")
        files[-1].write_text(
            f'name = "site {number}"\nconsortium = "../consortium.toml"\n'
            'certificate = "certificate.pem"\nkey = "key.pem"\nauthority = "authority.pem"\n'
            f'store = "store"\nlisten = "127.0.0.1:{port}"\n'
        )
    return files


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _cpu(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: Path) -> dict[str, float]:
    """Return resident memory: in all, the process's own, and pages of files such as libraries."""
    found = {}
    for line in (process / "status").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in ("VmRSS", "RssAnon", "RssFile"):
            found[f"{key}_mb"] = round(int(rest.split()[0]) * 1024 / MEGABYTE, 1)
    return found


# ---- all -----------------------------------------------------------------------------------------


def write(parts: dict[str, Any], path: Path) -> None:
    """Write the parts that were measured beside those that are there."""
    known = json.loads(path.read_text()) if path.exists() else {}
    document = {
        "benchmark": "gossip layer: link against bare gRPC, many nodes, idle node",
        **{part: known[part] for part in PARTS if part in known},
        **parts,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("grpcio", "protobuf", "cryptography")},
        },
        "machine": {"cores": os.cpu_count(), "platform": platform.platform()},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {path}")


def main() -> None:
    """Run the parts that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; none: all")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--payload", type=int, default=300_000, help="bytes, of scale")
    parser.add_argument("--seconds", type=float, default=30.0, help="of idle")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.parts == [SERVE]:
        asyncio.run(serve(options.folder))
        return
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {unknown[0]}")
    wanted = options.parts or PARTS
    load = {"load_average_before": os.getloadavg()}
    parts: dict[str, Any] = {}
    if "link" in wanted:
        sizes = [int(size * MEGABYTE) for size in options.megabytes]
        parts["link"] = {**load, "rows": asyncio.run(link(sizes, options.repeats))}
    if "scale" in wanted:
        rows = asyncio.run(scale(options.nodes, options.neighbours, options.payload))
        parts["scale"] = {**load, "rows": rows}
    if "idle" in wanted:
        parts["idle"] = {**load, **asyncio.run(idle(options.seconds))}
    write(parts, options.output)


if __name__ == "__main__":
    main()
