"""Calling off what a site's service works on."""

from __future__ import annotations

from pathlib import Path

import grpc

from client_app.service.calls import CANCEL, OPTIONS, target, why_away
from client_app.service.proto import site_pb2
from fedapp.errors import SiteUnavailable
from fedapp.text import clean

_ANSWER = 10.0  # seconds


def call_off(path: Path, task: str = "") -> list[str]:
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
    list of str
        What was called off, in words.

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
    return [clean(words) for words in site_pb2.CancelReply.FromString(data).called_off]
