"""The gossip layer against bare gRPC, with many nodes, and at rest.

Usage:
    python -m benchmarks.gossip
    python -m benchmarks.gossip --resume
    python -m benchmarks.gossip link --megabytes 1 --repeats 3 --output /tmp/gossip.json

Three parts, any of which can be asked for alone:

link
    One update from one process to another over loopback: asked for, signed, verified, written to
    disk and handed to a gathering, against a bare gRPC stream of the same bytes in the same chunks,
    with the same options, TLS and certificates on both sides. They take turns; the figure is the
    median of the ratios of neighbours in time. Memory: how far a process's peak lies above what it
    had before (the sender has the payload), in payloads.
scale
    Many nodes in one process, k-regular: bytes and messages of a node for several N and k.
idle
    `fedapp peer` with two neighbours that do nothing: resident memory (in all; RssAnon, its own;
    RssFile, pages of libraries, which processes share), and its share of a core.

Each part says what it took of the processors and what others took meanwhile: its times count only
where the others took next to nothing. About six minutes.

Results: benchmarks/results/gossip.json, written after every part; parts that were not asked for
stay as they are there. ``--resume`` leaves out those that are there, measured with the same options
and versions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.gossip_idle import idle
from benchmarks.gossip_link import SERVE, link, serve
from benchmarks.gossip_scale import scale
from benchmarks.process import MEGABYTE, Load

RESULT = Path(__file__).resolve().parent / "results" / "gossip.json"
PARTS = ("link", "scale", "idle")
LIMITS = {
    "throughput_of_bare": 0.6,
    "receiver_peak_payloads": 2.0,
    "idle_rss_mb": 60.0,
    "idle_share_of_a_core": 0.01,
}


def main() -> None:
    """Run the parts that were asked for, one after the other."""
    options = _parser().parse_args()
    if options.parts == [SERVE]:
        asyncio.run(serve(options.folder))
        return
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        _parser().error(f"no part is called {unknown[0]}")
    sizes = [int(size * MEGABYTE) for size in options.megabytes]
    works: dict[str, tuple[dict[str, Any], Callable[[], Awaitable[Any]]]] = {
        "link": (
            {"megabytes": options.megabytes, "repeats": options.repeats},
            lambda: link(sizes, options.repeats),
        ),
        "scale": (
            {"nodes": options.nodes, "neighbours": options.neighbours, "payload": options.payload},
            lambda: scale(options.nodes, options.neighbours, options.payload),
        ),
        "idle": ({"seconds": options.seconds}, lambda: idle(options.seconds)),
    }
    for part in options.parts or PARTS:
        settings, work = works[part]
        known = _known(options.output).get(part, {})
        told = {"settings": settings, "versions": versions()}
        if options.resume and told == {key: known.get(key) for key in told}:
            print(f"{part} is there")
            continue
        before = Load.now()
        rows = asyncio.run(_run(work))
        write({part: {**told, "load": Load.now().since(before), "rows": rows}}, options.output)


async def _run(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def versions() -> dict[str, str]:
    """Return what the figures depend on."""
    libraries = ("grpcio", "protobuf", "cryptography")
    return {
        "fedapp": version("fedapp"),
        "python": platform.python_version(),
        **{name: version(name) for name in libraries},
    }


def write(parts: dict[str, Any], path: Path) -> None:
    """Write the parts that were measured beside those that are there."""
    known = _known(path)
    document = {
        "benchmark": "gossip layer: link against bare gRPC, many nodes, idle node",
        "limits": LIMITS,
        "machine": {"cores": os.cpu_count(), "platform": platform.platform()},
        **{part: known[part] for part in PARTS if part in known},
        **parts,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {path}", flush=True)


def _known(path: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; none: all")
    parser.add_argument("--resume", action="store_true", help="keep the parts that are there")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--payload", type=int, default=300_000, help="bytes, of scale")
    parser.add_argument("--seconds", type=float, default=30.0, help="of idle")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser


if __name__ == "__main__":
    main()
