"""The life of a site's service, from its file to SIGTERM: `fedapp site serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from client_app.service.desk import Desk
from client_app.service.kept import KeptResult
from client_app.service.peer import HostedPeer, end_peer
from client_app.service.server import SiteServer
from client_app.service.work import SiteWork
from fedapp.audit import AuditLog
from fedapp.config_site import SiteFile, load_site_file
from fedapp.errors import ConfigError, LedgerError

Say = Callable[[str], None]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE = 6.0  # seconds for the step in progress; whoever stops a service waits 10


def serve(path: Path, say: Say = print, peer_file: Path | None = None) -> None:
    """Run the service of a site until SIGTERM or SIGINT.

    Parameters
    ----------
    path : Path
        The site's file.
    say : callable
        Takes a line at a time.
    peer_file : Path, optional
        What the service is a training peer by, instead of what the site's file says.

    Raises
    ------
    ConfigError
        If a file, the state folder or the socket cannot be used.
    LedgerError
        If the audit log is damaged, or another service writes it.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    config = load_site_file(path, peer_file)
    peer = HostedPeer.read(config, config.peer) if config.peer else None
    open_state(config)
    if not asyncio.run(_run(config, peer, say)):
        say(f"{config.name} ended in the middle of a step")
    sys.stdout.flush()
    sys.stderr.flush()
    # What is on the disk is old or new, never half. The interpreter's own end would wait for a
    # step in progress, and takes longer than all else to unload torch.
    os._exit(0)


def open_state(config: SiteFile) -> None:
    """Make the state folder, for this user alone; raises ConfigError."""
    try:
        config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        config.state.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"the state folder {config.state} cannot be used ({error.strerror}); give the service "
            "a folder of its own, with the setting state"
        ) from None


async def _run(config: SiteFile, peer: HostedPeer | None, say: Say) -> bool:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    audit, kept = AuditLog(config.audit), KeptResult(config.state, config.policy)
    try:
        work = SiteWork(config, audit, kept)
        desk = Desk(work)
        server = SiteServer(config, desk, audit, kept, peer)
        await server.start()
        try:
            audit.record("began", site=config.name, policy=config.policy.model_dump(mode="json"))
            say(f"{config.name} listens on {config.socket}; audit log {config.audit}")
            warming = asyncio.create_task(_warm(desk, work, server, config.name, say))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({warming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if warming.done():
                warming.result()
            meeting = asyncio.create_task(peer.keep(desk, work, audit, say)) if peer else None
            await stopping
            warming.cancel()
            await server.close()  # before the work is called off: whoever waits asks the next one
            if meeting is not None:
                await end_peer(meeting, work)
            ended = await desk.close(_PATIENCE)
            _note_end(config.name, audit, say)
        finally:  # not before: what was in the socket's place then is somebody else's
            config.socket.unlink(missing_ok=True)
    finally:
        audit.close()
    if ended:
        say(f"{config.name} has ended; audit log {audit.head}")
    return ended


def _note_end(name: str, audit: AuditLog, say: Say) -> None:
    try:
        audit.record("ended", site=name, head=audit.head)
    except LedgerError as error:  # a full disk, and the end is due all the same
        say(f"{name} ends, and its end is not in the audit log: {error.message}")


async def _warm(desk: Desk, work: SiteWork, server: SiteServer, name: str, say: Say) -> None:
    await desk.lend(work.warm)
    await server.ready()
    say(f"{name} is ready")
