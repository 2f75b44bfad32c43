"""`fedapp peer` with two neighbours that do nothing: its memory and its share of a core."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gossip_link import RUN
from benchmarks.process import cpu, memory
from fedapp.gossip.throwaway import Authority

_KEYS = ("VmRSS", "RssAnon", "RssFile")
_SETTLED = 20.0  # seconds until they have found each other


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
            await asyncio.sleep(_SETTLED)
            watched = Path(f"/proc/{processes[1].pid}")
            before, began = cpu(watched), time.monotonic()
            await asyncio.sleep(seconds)
            share = (cpu(watched) - before) / (time.monotonic() - began)
            found = memory(watched, *_KEYS)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
            codes = [await asyncio.wait_for(process.wait(), 10) for process in processes]
    row = {"seconds": seconds, "share_of_a_core": round(share, 5), **found, "exit_codes": codes}
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
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
