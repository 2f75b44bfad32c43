"""Calling off what a site's service works on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import grpc

from client_app.service.calls import CANCEL, OPTIONS, target, why_away
from client_app.service.proto import site_pb2
from fedapp.errors import SiteUnavailable
from fedapp.text import clean

_ANSWER = 10.0  # seconds


class CalledOff(NamedTuple):
    """Tasks in words: those that were called off, and those that were before and are ending."""

    called_off: list[str]
    ending: list[str]


def call_off(path: Path, task: str = "") -> CalledOff:
    """End the work on a task before it begins, or at its next step.

    Whoever waits for the task's answer is told that it was called off.

    Parameters
    ----------
    path : Path
        The service's socket.
    task : str
        `client_app.service.calls.task_id` of it; "" for all that is on the service's desk.

    Returns
    -------
    CalledOff

    Raises
    ------
    SiteUnavailable
        If the service does not answer.
    """
    request = site_pb2.CancelRequest(task=task)
    with grpc.insecure_channel(target(path), options=OPTIONS) as channel:
        call = channel.unary_unary(CANCEL)
        try:
            data = call(request.SerializeToString(), timeout=_ANSWER)
        except grpc.RpcError as error:
            why = why_away(error.code(), clean(error.details() or "", 300))
            raise SiteUnavailable(f"the site's service {why}; look after it there") from None
    reply = site_pb2.CancelReply.FromString(data)
    return CalledOff(list(map(clean, reply.called_off)), list(map(clean, reply.ending)))
