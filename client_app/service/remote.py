"""A site in another process: every instruction goes to its service, with a deadline.

This half runs where the coordinator's code runs. It holds no record and loads no torch.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

import fedapp
from client_app.failures import to_failure
from client_app.service.calls import (
    DESCRIBE,
    EXECUTE,
    OPTIONS,
    VERSION,
    socket_path,
    target,
    why_away,
)
from client_app.service.payloads import Bytes, Inflow, arrays, chunks, sizes
from client_app.service.proto import site_pb2
from fedapp.config import RunConfig, Scalar
from fedapp.errors import SiteUnavailable, WireError
from fedapp.exchange import Action, Instruction, Reply
from fedapp.headers import read_reply, write_describe, write_instruction
from fedapp.text import clean

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds for which a service may be away, to start again for instance."""
_PAUSE = 0.5  # seconds between two attempts
_TELL = 10.0  # seconds between two lines about progress
_MOST = 10**12  # bytes of an answer: the site is trusted by its own ClientApp
_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,  # it is not there, or ends
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,  # the payloads of the same task did not arrive
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # no place
    }
)
_CHANNEL = [
    *OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
]


class RemoteSite:
    """A `client_app.site.Site` behind a socket.

    Parameters
    ----------
    address : str
        ``unix:/PATH``.
    coordinator : str
        Name of the coordinator, as the SuperNode's operator wrote it.
    patience : float
        Longest time for which the service may be away, in seconds.
    tell : callable
        Takes a line about progress now and then. By default it is printed, which is on the
        SuperNode's output: nothing of it reaches the coordinator.

    Raises
    ------
    ConfigError
        If the address is none.
    """

    def __init__(
        self,
        address: str,
        coordinator: str = "",
        patience: float = PATIENCE,
        tell: Callable[[str], object] = print,
    ) -> None:
        self._path, self._patience, self._tell = socket_path(address), patience, tell
        self._caller = site_pb2.Caller(
            version=VERSION, app_version=fedapp.__version__, coordinator=coordinator
        )

    @classmethod
    def of_node(cls, node_config: Mapping[str, Scalar]) -> RemoteSite:
        """Return the site that a node's configuration names."""
        coordinator = str(node_config.get("coordinator", ""))
        return cls(str(node_config["site-address"]), coordinator)

    def describe(self, config: RunConfig, site: str) -> Reply:
        """Ask the site who it is; ``site`` is its name if it cannot be asked."""
        header = write_describe(config)
        request = site_pb2.DescribeRequest(caller=self._caller, header=header).SerializeToString()

        def call(channel: grpc.Channel, timeout: float) -> Reply:
            return self._read(channel.unary_stream(DESCRIBE)(request, timeout=timeout), None)

        try:
            return self._patiently(call, config.federation.handshake_timeout)
        except Exception as error:
            failure = to_failure(error, site, 0)
            return Reply(site, 0, Action.DESCRIBE, failure=failure)

    def execute(self, instruction: Instruction) -> Reply:
        """Do what is asked, see `client_app.site.Site`."""
        federation = instruction.config.federation
        rounds = federation.rounds if instruction.action is Action.LOCAL_ONLY else 1
        try:
            header = write_instruction(instruction)
            payloads = arrays(instruction.payloads)

            def call(channel: grpc.Channel, timeout: float) -> Reply:
                outgoing = _Outgoing(self._caller, header, payloads)
                try:
                    events = channel.stream_stream(EXECUTE)(iter(outgoing), timeout=timeout)
                    return self._read(events, outgoing)
                finally:
                    outgoing.decide(False)

            return self._patiently(call, federation.round_timeout * rounds)
        except Exception as error:
            failure = to_failure(error, instruction.site, instruction.round)
            return Reply(instruction.site, instruction.round, instruction.action, failure=failure)

    def _patiently(self, call: Callable[[grpc.Channel, float], Reply], timeout: float) -> Reply:
        """Call, and again if the service is away or busy for a while."""
        deadline = time.monotonic() + timeout
        away: float | None = None
        with grpc.insecure_channel(target(self._path), options=_CHANNEL) as channel:
            while True:
                began = time.monotonic()
                try:
                    return call(channel, max(0.1, deadline - began))
                except grpc.RpcError as error:
                    code, details = error.code(), clean(error.details() or "", 300)
                now = time.monotonic()
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise SiteUnavailable(
                        f"the site's service did not answer within {timeout:g} s; it works on, and "
                        "keeps its result for the next message"
                    )
                if code not in _AGAIN:
                    raise WireError(f"the site's service refused the call ({code.name}): {details}")
                # What took long was a service that was there until now.
                away = now if away is None or now - began > self._patience else away
                if now - away > self._patience or now + _PAUSE > deadline:
                    log.error("%s: %s: %s", self._path, code.name, details)
                    raise SiteUnavailable(
                        f"the site's service {why_away(code, details)}, for {now - away:.0f} s; "
                        "look after it there, or start it with `fedapp site serve`"
                    )
                time.sleep(_PAUSE)

    def _read(self, events: Any, outgoing: _Outgoing | None) -> Reply:
        head, inflow, told = None, None, 0.0
        for data in events:
            try:
                event = site_pb2.Event.FromString(data)
            except Exception:
                raise WireError("the site's service sent what cannot be read") from None
            part = event.WhichOneof("part")
            if part == "accepted" and outgoing is not None:
                outgoing.decide(event.accepted.send)
            elif part == "progress" and event.progress.step and time.monotonic() - told > _TELL:
                told = time.monotonic()
                self._tell(f"step {event.progress.step} of {event.progress.steps}")
            elif part == "answer" and head is None:
                head, inflow = event.answer.header, Inflow(event.answer.payloads, _MOST)
            elif part == "chunk" and inflow is not None:
                inflow.take(event.chunk)
        if head is None or inflow is None or not inflow.full:
            raise WireError("the site's service ended a call before its answer")
        return read_reply(head, inflow.sizes, inflow.fetch)


class _Outgoing:
    """What an Execute sends: its start, and the payloads if the service wants them."""

    def __init__(self, caller: site_pb2.Caller, header: str, payloads: Mapping[str, Bytes]) -> None:
        self._start = site_pb2.Start(caller=caller, header=header, payloads=sizes(payloads))
        self._payloads = payloads
        self._decision: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def decide(self, send: bool) -> None:
        """Take the service's decision; the first one counts, False ends the sending thread."""
        self._decision.put(send)

    def __iter__(self) -> Iterator[bytes]:
        yield site_pb2.Request(start=self._start).SerializeToString()
        if self._decision.get():
            for chunk in chunks(self._payloads):
                yield site_pb2.Request(chunk=chunk).SerializeToString()
