"""gRPC's asyncio engine, kept for the life of the process."""

from __future__ import annotations

from functools import cache

import grpc.aio


@cache
def hold_engine() -> None:
    """Keep the engine from ending with the last of its objects.

    It would end wherever that object happens to be collected, and wait there, without a deadline,
    for calls of event loops that may have been closed long since.
    """
    grpc.aio.init_grpc_aio()
