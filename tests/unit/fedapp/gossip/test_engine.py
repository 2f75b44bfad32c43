"""gRPC's asyncio engine does not end in a garbage collection."""

import subprocess
import sys

PROGRAM = """
import asyncio, gc, threading
import grpc.aio
from fedapp.gossip.engine import hold_engine

def polling():
    return any("_poll_wrapper" in thread.name for thread in threading.enumerate())

async def connect():
    async with grpc.aio.insecure_channel("127.0.0.1:1"):
        pass

{hold}
asyncio.run(connect())
gc.collect()
print(polling())
"""


def polls(hold: str) -> str:
    program = PROGRAM.format(hold=hold)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_engine_outlives_its_objects():
    assert polls("hold_engine(); hold_engine()") == "True"
    assert polls("") == "False", "which is what has to be held"
