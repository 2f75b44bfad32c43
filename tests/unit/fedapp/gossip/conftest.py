"""What all tests of the gossip layer share."""

import logging

import pytest

# An answer that meets a connection which has just gone: gRPC tells it as an error of its own.
_TOO_LATE = "ExecuteBatchError raised in core"


@pytest.fixture(autouse=True)
def nothing_is_lost_in_silence(caplog):
    """Fail a test in which a task died unnoticed, or gRPC caught what a handler threw."""
    yield
    for record in caplog.get_records("call"):
        told = record.getMessage()
        if record.name.startswith(("asyncio", "grpc")) and record.levelno >= logging.ERROR:
            assert told.startswith(_TOO_LATE), told
