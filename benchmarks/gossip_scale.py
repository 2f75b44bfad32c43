"""Many nodes in one process, k-regular: bytes and messages of a node; see `benchmarks.gossip`."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gossip_link import LAYOUT, payload
from benchmarks.process import reset_peak, resident
from fedapp.gossip.local import LocalNodes


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
