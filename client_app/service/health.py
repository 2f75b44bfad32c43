"""A container's look at its site service: does it answer, and is the way to the coordinator alive?

Usage:
    python -P -m client_app.service.health /run/fedapp/site.sock [SECONDS]

Exit codes: 0 it would begin a task at once when nothing runs; 1 it does not answer, or is not ready
yet; 3 it is well, but no ClientApp has called for SECONDS: alive, and offline; 4 it is well, but
the training peer that it is as well has failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc

from client_app.service.calls import HEALTH, target
from client_app.service.proto import site_pb2

_TIMEOUT = 5.0  # seconds


def main(arguments: list[str]) -> int:
    """Print one line and return the exit code."""
    path, silence = Path(arguments[0]), float(arguments[1]) if len(arguments) > 1 else float("inf")
    with grpc.insecure_channel(target(path)) as channel:
        try:
            data = channel.unary_unary(HEALTH)(b"", timeout=_TIMEOUT)
        except grpc.RpcError as error:
            print(f"{path} does not answer: {error.code().name}")
            return 1
    health = site_pb2.HealthReply.FromString(data)
    nothing = "nothing to do for a coordinator" if health.peer else "idle"
    # One that has never been called is silent since it began.
    silent = health.silent if health.silent >= 0 else health.uptime
    print(
        f"{health.site}, fedapp {health.version}: "
        f"{health.doing or (nothing if health.ready else 'not ready yet')}; "
        f"called {silent:.0f} s ago"
        + ("" if health.silent >= 0 else " or never")
        + (f"; peer {health.peer}" if health.peer else "")
    )
    if not health.ready:
        return 1
    if health.peer_failed:
        return 4
    return 3 if silent > silence and not health.tasks else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
