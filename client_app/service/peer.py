"""The service as a training peer: its node in the network, its rounds at the service's own desk.

The same records, base model, policy and audit log as for a coordinator, and one thread that works:
a half of a peer's round waits its turn among the coordinator's tasks, and they wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import fedapp
from client_app.service.desk import Desk
from client_app.service.work import SiteWork, check_model
from fedapp.audit import AuditLog
from fedapp.config import RunConfig
from fedapp.config_peer import load_peer, read_settings
from fedapp.config_site import SiteFile
from fedapp.errors import (
    ConfigError,
    DataError,
    FedappError,
    IdentityError,
    PolicyRefused,
    Refused,
)
from fedapp.exchange import Instruction, Reply
from fedapp.gossip.chunks import Grid, manifest, payload_digest
from fedapp.gossip.peer import load_identity, run_node
from fedapp.gossip.start import Start
from fedapp.policy import Request, check_request

Say = Callable[[str], None]
log = logging.getLogger(__name__)

_AGAIN = 30.0  # seconds after which a peer that failed begins again, as a service manager would
_LOOK = 20.0  # seconds between two looks at the opening hours
_CLOSE = 3.0  # seconds; whoever stops a service waits 10
_LONGEST = 1000  # characters of what is told about it


@dataclass
class HostedPeer:
    """This site's peer.

    Attributes
    ----------
    config : SiteFile
    start : Start
        Its state is below the service's.
    run : RunConfig
        With this site's own records and folders of base models.
    doing : str
        What it does now, in words.
    failed : bool
        Whether it has failed, for good or until a round of it has succeeded again: for longer than
        the pause in between, in which nobody may have looked.
    """

    config: SiteFile
    start: Start
    run: RunConfig
    doing: str = "not begun"
    failed: bool = False

    @classmethod
    def read(cls, config: SiteFile, path: Path) -> HostedPeer:
        """Read the peer's file and what it names.

        Raises
        ------
        ConfigError, IdentityError
            If something in it is wrong, or does not fit the site's own file.
        """
        start = load_peer(path)
        if start.name != config.name:
            raise ConfigError(
                f"{path} is the file of '{start.name}', expected this site's, "
                f"'{config.name}'; correct name there, or peer in the site's file"
            )
        if not start.settings_file:
            raise ConfigError(
                f"{path} names no settings, so that this peer would train nothing; name "
                "them, or start `fedapp peer`, which passes on what others publish"
            )
        load_identity(start)
        run = read_settings(Path(start.settings_file))
        if run.faults.sites:
            raise ConfigError(
                f"{start.settings_file} declares a rehearsal of attacks, and a hospital's site "
                "service takes part in none; leave faults.sites out"
            )
        try:
            check_model(config, run.model.source)
            check_request(config.policy, _request(config, run, begun=True))
        except (ConfigError, PolicyRefused) as error:
            raise ConfigError(f"{start.settings_file}: {error.message}") from None
        return cls(config, replace(start, state=str(config.state / "peer")), config.localise(run))

    async def keep(self, desk: Desk, work: SiteWork, audit: AuditLog, say: Say) -> None:
        """Run the peer to the end of its last round; begin again after what may pass.

        Cancelled when the service is told to end.
        """
        self._succeeds()
        while True:
            try:
                await self._once(desk, work, say)
            except (ConfigError, DataError, IdentityError, Refused) as error:
                say(f"{self.config.name} is no peer any more: {error}")
                self._fails(f"failed, {error}")
                await self._note(audit, "failed", error.message)
                return
            except FedappError as error:
                log.warning("%s; the peer begins again in %g s", error, _AGAIN)
                self._fails(f"failed, {error}")
                await asyncio.sleep(_AGAIN)
            except Exception as error:  # what is asked by the coordinator goes on
                log.error("the peer has failed", exc_info=error)
                why = f"{type(error).__name__}, see the service's log"
                self._fails(f"failed, {why}")
                await self._note(audit, "failed", why)
                return
            else:
                self.doing, self.failed = "completed", False
                await self._note(audit, "completed", "")
                return

    def _succeeds(self) -> None:
        self.doing, self.failed = "running", False

    def _fails(self, words: str) -> None:
        self.doing, self.failed = words[:_LONGEST], True

    async def _once(self, desk: Desk, work: SiteWork, say: Say) -> None:
        from client_app.peer_process import Trainer, run_folder  # loads torch, so only here

        with run_folder(self.start) as folder:
            trainer = Trainer(
                self.start, self.run, _Site(work, self.start.settings.chunk), folder, say,
                beside=desk.lend, may_begin=self._may_begin, succeeded=self._succeeds,
            )  # fmt: skip
            await run_node(self.start, trainer, asyncio.Event(), say)

    async def _may_begin(self) -> None:
        """Wait for the opening hours."""
        while True:
            try:
                check_request(self.config.policy, _request(self.config, self.run, begun=False))
            except PolicyRefused:  # of the hours: the rest was checked at the beginning
                await asyncio.sleep(_LOOK)
            else:
                return

    async def _note(self, audit: AuditLog, how: str, why: str) -> None:
        await asyncio.to_thread(
            audit.record, "peer-ended", run=self.start.run, how=how, message=why
        )


@dataclass(frozen=True)
class _Site:
    """The service's work as the peer's site; ``chunk``: bytes of one, which digests depend on."""

    work: SiteWork
    chunk: int

    def execute(self, instruction: Instruction) -> Reply:
        return self.work.for_peer(instruction, self._digest)

    def _digest(self, payload: bytes) -> str:
        grid = Grid(len(payload), self.chunk)
        return payload_digest(manifest(payload, grid), grid)


async def end_peer(running: asyncio.Task[None], work: SiteWork) -> None:
    """Call the peer off and close its node."""
    work.end()
    running.cancel()
    await asyncio.wait({running}, timeout=_CLOSE)


def _request(config: SiteFile, run: RunConfig, *, begun: bool) -> Request:
    # There is no coordinator: whom this site listens to says the consortium's file.
    asks = config.policy.coordinators[0] if config.policy.coordinators else ""
    version = config.policy.app_versions[0] if config.policy.app_versions else fedapp.__version__
    return Request(run, 1, version, asks, datetime.now(UTC), begun)
