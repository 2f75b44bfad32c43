"""A reply that must be good, or the error that it tells of."""

from __future__ import annotations

from fedapp import errors
from fedapp.errors import FedappError
from fedapp.exchange import Reply


def checked(reply: Reply) -> Reply:
    """Return the reply.

    Raises
    ------
    FedappError
        With the reply's own sentence, if it tells of a failure.
    """
    if reply.failure is None:
        return reply
    kind = getattr(errors, reply.failure.kind, FedappError)
    plain = isinstance(kind, type) and issubclass(kind, FedappError)
    if not plain or issubclass(kind, errors.Refused):  # a refusal wants more than a sentence
        kind = FedappError
    raise kind(reply.failure.message)
