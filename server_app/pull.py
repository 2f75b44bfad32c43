"""Pull the replies that are there; one that is late or cannot be decoded costs no other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid, http_grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedapp.errors import WireError
from fedapp.text import clean

_LONGEST_REASON = 300  # characters
_LONGEST_PAUSE = 1.0  # seconds between two looks for an object that is on its way
_flower: Any = http_grid
_pull_objects = _flower.pull_objects

# What Flower's decoding raises. None of it is of the network, whose errors end the run.
_UNDECODABLE = (
    *(DecodeError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(AssertionError, RecursionError),
)


def pull(
    grid: Grid, message_ids: Iterable[str], deadline: float
) -> Iterator[tuple[str, Message | WireError]]:
    """Yield the replies that are there, each with the id of the message that it answers.

    Flower forgets the replies of a call before it decodes them: of one that it cannot decode, and
    of those beside it, nothing is left. Where anybody may send anything, each is therefore asked
    for alone; it then has to answer the message that was asked for, else its id is "".

    A reply is announced before its content has arrived, which may be never. Flower would wait for
    it up to two hours; here until ``deadline``, by `time.monotonic`: then it is an error message.

    Yields
    ------
    answered : str
    reply : Message or WireError
        The error tells why it cannot be read. It will not come again.
    """
    ids = sorted(message_ids)
    if not isinstance(grid, HttpGrid):
        yield from _pull(grid, ids)
        return
    for asked in ids:
        with _objects_until(deadline):
            replies = list(_pull(grid, [asked]))
        for answered, reply in replies:
            yield answered if answered == asked else "", reply


@contextmanager
def _objects_until(deadline: float) -> Iterator[None]:
    """Bound how long Flower's grid waits for announced objects, for which it takes no argument."""
    left = max(0.0, deadline - time.monotonic())
    _flower.pull_objects = partial(_pull_objects, max_time=left, backoff_cap=_LONGEST_PAUSE)
    try:
        yield
    finally:
        _flower.pull_objects = _pull_objects


def _pull(grid: Grid, ids: list[str]) -> Iterator[tuple[str, Message | WireError]]:
    try:
        replies = list(grid.pull_messages(ids))
    except _UNDECODABLE as error:
        if len(ids) > 1:
            for one in ids:
                yield from _pull(grid, [one])
            return
        reason = clean(f"{type(error).__name__}: {error}", _LONGEST_REASON)
        yield (
            ids[0],
            WireError(
                f"the reply cannot be decoded ({reason}); install the coordinator's versions of "
                "fedapp and flwr there"
            ),
        )
        return
    yield from ((reply.metadata.reply_to_message_id, reply) for reply in replies)
