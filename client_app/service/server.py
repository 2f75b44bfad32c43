"""The site's socket: Describe, Execute, Cancel and Health, by whoever may open the file.

A caller that announces too much, sends something else or nothing, or does not take its answer, is
cut off; what it asked for goes on, and waits for it to come back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import grpc
import grpc.aio
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import fedapp
from client_app.failures import to_failure
from client_app.service.answer import Answer
from client_app.service.calls import OPTIONS, SERVICE, VERSION, task_id
from client_app.service.desk import Desk, Task
from client_app.service.kept import KeptResult
from client_app.service.payloads import Inflow, chunks, sizes
from client_app.service.peer import HostedPeer
from client_app.service.proto import site_pb2
from client_app.service.socket_file import open_socket
from client_app.service.work import described
from fedapp.audit import AuditLog
from fedapp.config_site import SiteFile
from fedapp.errors import (
    ConfigError,
    FedappError,
    LedgerError,
    PolicyRefused,
    SiteUnavailable,
    WireError,
)
from fedapp.exchange import Action, Instruction, Reply
from fedapp.gossip.engine import hold_engine
from fedapp.headers import read_describe, read_instruction
from fedapp.policy import Request, check_request
from fedapp.text import clean

log = logging.getLogger(__name__)

Context = Any  # grpc.aio.ServicerContext; grpc has no types

_GRACE = 1.0  # seconds for calls in progress when the service closes
_LOOK = 0.25  # seconds between two looks at a task's progress
_SIGN_OF_LIFE = 5.0  # seconds after which a waiting ClientApp hears something
_NOTHING = np.empty(0, np.uint8)
_MAX_CALLS = 32


class SiteServer:
    """Answers calls.

    Parameters
    ----------
    config : SiteFile
    desk : Desk
    audit : AuditLog
    kept : KeptResult
    peer : HostedPeer, optional
        The training peer that the service is as well, for its health.
    """

    def __init__(
        self,
        config: SiteFile,
        desk: Desk,
        audit: AuditLog,
        kept: KeptResult,
        peer: HostedPeer | None = None,
    ) -> None:
        self._config, self._desk, self._audit, self._kept = config, desk, audit, kept
        self._peer = peer
        self._most = int(config.limits.max_payload_mb * 1e6)
        self._started = time.monotonic()
        self._heard: float | None = None
        self._ready = False
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Open the socket.

        Raises
        ------
        ConfigError
            If its folder is open to everybody, or another service listens there.
        """
        hold_engine()
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        methods = {
            "Describe": grpc.unary_stream_rpc_method_handler(self._describe),
            "Execute": grpc.stream_stream_rpc_method_handler(self._execute),
            "Cancel": grpc.unary_unary_rpc_method_handler(self._cancel),
            "Health": grpc.unary_unary_rpc_method_handler(self._tell_health),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        open_socket(server, self._config.socket)
        await server.start()
        self._server = server

    async def ready(self) -> None:
        """Say that tasks begin at once from now on."""
        self._ready = True
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Take no more calls and end those in progress."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(_GRACE)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)

    # ---- calls ------------------------------------------------------------------------------

    async def _describe(self, data: bytes, context: Context) -> None:
        self._heard = time.monotonic()
        request = await _parse(site_pb2.DescribeRequest, data, context)
        await _check_version(request.caller, context)

        def read() -> Instruction:
            config = read_describe(request.header)
            return Instruction(Action.DESCRIBE, self._config.name, config)

        await self._serve(request.caller, request.header, read, Inflow([], 0), context)

    async def _execute(self, _requests: Any, context: Context) -> None:
        self._heard = time.monotonic()
        start = await self._first(context)
        await _check_version(start.caller, context)
        try:
            inflow = Inflow(start.payloads, self._most)
        except WireError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, error.message)

        def read() -> Instruction:
            asked = read_instruction(start.header, inflow.sizes, lambda _name: _NOTHING)
            for name, packed in asked.payloads.items():
                if packed.layout.nbytes != inflow.sizes[name]:
                    raise WireError(
                        f"payload '{clean(name)}' is announced with {inflow.sizes[name]} bytes, "
                        f"and its layout has {packed.layout.nbytes}"
                    )
            return asked

        await self._serve(start.caller, start.header, read, inflow, context)

    async def _cancel(self, data: bytes, context: Context) -> bytes:
        request = await _parse(site_pb2.CancelRequest, data, context)
        reply, called_off = site_pb2.CancelReply(), []
        for task in self._desk.tasks:
            if request.task not in ("", task.id):
                continue
            if task.cancelled.is_set():
                reply.ending.append(_in_words(task))
                continue
            reply.called_off.append(_in_words(task))
            self._desk.cancel(task)
            called_off.append(task)
        for task in called_off:  # all have ended by now, whatever the disk says
            try:
                await self._note("cancelled", **described(task.id, task.instruction))
            except LedgerError as error:
                log.error("%s was called off, and not noted: %s", _in_words(task), error)
        return bytes(reply.SerializeToString())

    async def _tell_health(self, _data: bytes, _context: Context) -> bytes:
        tasks, now = self._desk.tasks, time.monotonic()
        doing = next((_in_words(task) for task in tasks if task.began), "")
        reply = site_pb2.HealthReply(
            site=self._config.name,
            version=fedapp.__version__,
            ready=self._ready,
            tasks=len(tasks),
            doing=doing,
            silent=-1.0 if self._heard is None else now - self._heard,
            uptime=now - self._started,
            peer=self._peer.doing if self._peer else "",
            peer_failed=self._peer is not None and self._peer.failed,
        )
        return bytes(reply.SerializeToString())

    # ---- one request ------------------------------------------------------------------------

    async def _serve(
        self,
        caller: site_pb2.Caller,
        header: str,
        read: Callable[[], Instruction],
        inflow: Inflow,
        context: Context,
    ) -> None:
        try:
            asked = read()
        except FedappError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, error.message)
        try:
            answer = await self._find_or_work(task_id(header), caller, asked, inflow, context)
        except LedgerError as error:  # nothing leaves that is not written down
            answer = _failed(asked, error)
        await self._answer(answer, context)

    async def _find_or_work(
        self,
        identity: str,
        caller: site_pb2.Caller,
        asked: Instruction,
        inflow: Inflow,
        context: Context,
    ) -> Answer:
        task, kept = self._desk.find(identity), None
        if task is None:  # what is done is kept before it leaves the desk
            kept = await asyncio.to_thread(self._kept.load, identity)
            task = self._desk.find(identity)
        refusal = self._refusal(caller, asked, begun=task is not None or kept is not None)
        if refusal is not None:
            await self._note("refused", **_refused(refusal, caller), **described("", asked))
            return _failed(asked, refusal)
        if kept is not None:
            await self._repeat(identity, asked, context)
            return kept
        if task is None:  # nothing was awaited since it was looked for
            task = await self._begin(identity, asked, inflow, context)
        else:
            await self._repeat(identity, asked, context)
        return await self._wait(task, context)

    async def _repeat(self, identity: str, asked: Instruction, context: Context) -> None:
        await self._note("repeated", **described(identity, asked))
        await self._accept(False, context)

    def _refusal(
        self, caller: site_pb2.Caller, asked: Instruction, begun: bool
    ) -> FedappError | None:
        """Return why a request may not be, or None."""
        who = (caller.app_version, caller.coordinator)
        request = Request(asked.config, asked.round, *who, datetime.now(UTC), begun)
        try:
            if asked.site != self._config.name:
                raise WireError(f"this is site {self._config.name}; correct the SuperNode's site")
            _check_kind(asked)
            check_request(self._config.policy, request)
        except FedappError as error:
            return error
        return None

    async def _begin(self, task: str, asked: Instruction, inflow: Inflow, context: Context) -> Task:
        try:
            admitted = self._desk.admit(task, asked)
        except SiteUnavailable as error:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        launched = False
        admitted.listeners += 1
        try:
            await self._accept(not inflow.full, context)
            while not inflow.full:
                request = await self._next(self._config.limits.chunk_timeout, context)
                try:
                    inflow.take(request.chunk)
                except WireError as error:
                    await abort(context, grpc.StatusCode.INVALID_ARGUMENT, error.message)
            payloads = {
                name: type(packed)(inflow.fetch(name), packed.layout)
                for name, packed in asked.payloads.items()
            }
            self._desk.launch(admitted, replace(asked, payloads=payloads))
            launched = True
        finally:
            admitted.listeners -= 1
            if not launched:
                self._desk.drop(admitted)
        return admitted

    async def _wait(self, task: Task, context: Context) -> Answer:
        """Return the task's answer, and tell of its progress until then."""
        told, told_at = task.progress, time.monotonic()
        task.listeners += 1
        try:
            while not (await asyncio.wait({task.done}, timeout=_LOOK))[0]:
                if task.progress == told and time.monotonic() - told_at < _SIGN_OF_LIFE:
                    continue
                told, told_at = task.progress, time.monotonic()
                step, steps, loss = told
                progress = site_pb2.Progress(step=step, steps=steps, loss=loss)
                await self._write(site_pb2.Event(progress=progress), context)
            return task.done.result()
        except SiteUnavailable as error:
            await abort(context, grpc.StatusCode.ABORTED, error.message)
        finally:
            task.listeners -= 1

    async def _accept(self, send: bool, context: Context) -> None:
        await self._write(site_pb2.Event(accepted=site_pb2.Accepted(send=send)), context)

    async def _answer(self, answer: Answer, context: Context) -> None:
        head = site_pb2.Answer(header=answer.header, payloads=sizes(answer.payloads))
        await self._write(site_pb2.Event(answer=head), context)
        for chunk in chunks(answer.payloads):
            await self._write(site_pb2.Event(chunk=chunk), context)

    async def _write(self, event: site_pb2.Event, context: Context) -> None:
        timeout = self._config.limits.chunk_timeout
        try:
            async with asyncio.timeout(timeout):
                await context.write(event.SerializeToString())
        except TimeoutError:
            await abort(
                context, grpc.StatusCode.DEADLINE_EXCEEDED, f"nothing was taken for {timeout:g} s"
            )

    async def _first(self, context: Context) -> site_pb2.Start:
        request: site_pb2.Request = await self._next(self._config.limits.start_timeout, context)
        if not request.HasField("start"):
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "a call begins with its start")
        return request.start

    async def _next(self, timeout: float, context: Context) -> site_pb2.Request:
        try:
            async with asyncio.timeout(timeout):
                data = await context.read()
        except TimeoutError:
            await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, f"nothing for {timeout:g} s")
        if data is grpc.aio.EOF:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call ended before its end")
        request: site_pb2.Request = await _parse(site_pb2.Request, data, context)
        return request

    async def _note(self, event: str, **what: Any) -> None:
        await asyncio.to_thread(self._audit.record, event, **what)


def _check_kind(asked: Instruction) -> None:
    """Refuse what is asked in simulations alone."""
    if asked.action in (Action.PUBLISH, Action.MIX):
        raise ConfigError(
            f"'{asked.action}' is for a simulation, in which the coordinator runs every site's "
            "node; between hospitals each runs its own: choose a method with a coordinator"
        )
    if asked.config.faults.sites:
        raise ConfigError(
            f"this run is a rehearsal in which {', '.join(map(clean, asked.config.faults.sites))} "
            "attack(s) on purpose, and a hospital's site service takes part in none; leave "
            "faults.sites empty"
        )


def _failed(asked: Instruction, error: FedappError) -> Answer:
    failure = to_failure(error, asked.site, asked.round)
    return Answer.of(Reply(asked.site, asked.round, asked.action, failure=failure))


def _refused(error: FedappError, caller: site_pb2.Caller) -> dict[str, str]:
    return {
        "rule": error.reason if isinstance(error, PolicyRefused) else "",
        "message": error.message,
        "app_version": caller.app_version[:100],
        "coordinator": caller.coordinator[:100],
    }


def _in_words(task: Task) -> str:
    asked, (step, steps, _) = task.instruction, task.progress
    where = f", step {step} of {steps}" if step else ""
    return f"{asked.action.value} of round {asked.round}{where}"


async def _check_version(caller: site_pb2.Caller, context: Context) -> None:
    if caller.version != VERSION:
        await abort(
            context,
            grpc.StatusCode.FAILED_PRECONDITION,
            f"this service speaks version {VERSION} of the protocol, the call has "
            f"{caller.version}; run the same fedapp version everywhere",
        )


async def _parse(kind: Any, data: bytes, context: Context) -> Any:
    try:
        return kind.FromString(data)
    except Exception:
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be read")


async def abort(context: Context, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """End a call with a status and a sentence."""
    # Status messages travel in a header.
    await context.abort(code, sentence.encode("ascii", "backslashreplace").decode()[:1000])
    raise AssertionError("abort raises")
