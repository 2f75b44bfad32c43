"""What all tests of the gossip layer share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def nothing_is_lost_in_silence(caplog):
    """Fail a test in which a task died unnoticed, or gRPC caught what a handler threw."""
    yield
    for record in caplog.get_records("call"):
        if record.name.startswith(("asyncio", "grpc")) and record.levelno >= logging.ERROR:
            pytest.fail(record.getMessage())
