"""Push messages to the SuperLink; a push whose answer was lost is made good."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

_TRIES = 5


def push(grid: Grid, messages: Sequence[Message]) -> set[str]:
    """Return the ids of the messages that Flower took.

    When the SuperLink is restarted in the middle of a push, Flower asks once more, and is told that
    the object is not waited for: it is there already. The same messages pushed anew are the same to
    the SuperLink, which then asks for what it lacks alone.

    Raises
    ------
    ObjectPushError
        If it does not take an object, again and again.
    """
    for _ in range(_TRIES - 1):
        try:
            return set(grid.push_messages(messages))
        except ObjectPushError:
            continue
    return set(grid.push_messages(messages))
