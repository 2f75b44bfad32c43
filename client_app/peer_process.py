"""A training site in the gossip network: the rounds, by its own clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from client_app.hosting import hosted_sites
from client_app.models import load_resident
from client_app.site import LocalSite, Site
from fedapp.adapter import Adapter
from fedapp.atomic import sync_folder, write_bytes
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.config_peer import read_settings
from fedapp.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    FedappError,
    GossipError,
    LedgerError,
    PolicyRefused,
)
from fedapp.exchange import Action, Instruction, Reply
from fedapp.exported import save_exported
from fedapp.gossip.node import GossipNode
from fedapp.gossip.post import deliver
from fedapp.gossip.start import Start
from fedapp.hash_chain import read_chain
from fedapp.mailbox import Mailbox
from fedapp.results import RunFolder, versions
from fedapp.run_lock import RunLock
from fedapp.site_rows import join_halves, site_rows
from fedapp.tasks import headline, title

Say = Callable[[str], None]
T = TypeVar("T")
_KINDS = {kind.__name__: kind for kind in (ConfigError, DataError)}
_LOOK = 0.2  # seconds between two looks at where the others are


class Beside(Protocol):
    """Does work beside the event loop, and never two works at a time."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what ``work`` returns, or raise what it raises."""


@contextmanager
def load_trainer(start: Start, settings: Path, say: Say) -> Iterator[Trainer]:
    """Read the run's settings and this site's records, and hold its folder of results.

    Raises
    ------
    ConfigError
        If the settings are wrong, or their method needs a coordinator.
    CheckpointError
        If another process works in the folder.
    """
    config = read_settings(settings)
    site = hosted_sites(config, {"site": start.name})[start.name]
    with run_folder(start) as folder:
        yield Trainer(start, config, site, folder, say)


@contextmanager
def run_folder(start: Start) -> Iterator[RunFolder]:
    """Hold the site's folder of results in this run, ``run`` below its state.

    What is there of another run is kept beside it, as ``run-ID``, and comes back with that run.

    Raises
    ------
    CheckpointError
        If another process works in it, or it cannot be made.
    """
    folder, lock = _own_folder(start)
    try:
        yield folder
    finally:
        lock.release()


def _own_folder(start: Start) -> tuple[RunFolder, RunLock]:
    folder = RunFolder(Path(start.state) / "run")
    aside = folder.path.with_name(f"run-{start.run}")
    folder.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sorting = RunLock(folder.path.parent)  # one process at a time looks and moves
    try:
        if folder.path.exists():
            lock = RunLock(folder.path)  # nothing is moved while somebody works in it
            if (other := _run_of(folder)) in ("", start.run):
                return folder, lock
            lock.release()
            _move(folder.path, _free(folder.path.with_name(f"run-{other}")))
        # A kill between the two moves leaves what the next start finds.
        if aside.exists():
            _move(aside, folder.path)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        return folder, RunLock(folder.path)
    finally:
        sorting.release()


def _run_of(folder: RunFolder) -> str:
    """Return the run whose results a folder has; "": it has none yet."""
    with suppress(CheckpointError):
        if told := str(folder.read_config().get("run", "")):
            return told
    with suppress(LedgerError, OSError):  # a folder in which only the ledger says it
        for link in read_chain(folder.ledger / "ledger.jsonl"):
            return str(link.body.get("run", ""))
    return ""


def _free(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(one for one in chain([path], numbered) if not one.exists())


def _move(path: Path, target: Path) -> None:
    try:
        path.rename(target)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path}, the results of one run, cannot become {target.name} to make room for those "
            f"of another ({error.strerror}); move it away yourself"
        ) from None


async def _at_once() -> None:
    """Let every round begin."""


@dataclass
class Trainer:
    """Trains, publishes, gathers and mixes, round after round: `fedapp.gossip.peer.Engine`.

    What a round does is `client_app.peer_round`, as under a coordinator. Its results are a run
    folder of this site alone, below ``state``.

    Attributes
    ----------
    start : Start
    config : RunConfig
    site : Site
    folder : RunFolder
    say : callable
        Takes a line at a time.
    beside : Beside
        Where the site works.
    may_begin : callable
        Returns when a round may begin.
    succeeded : callable
        Told after every round.
    """

    start: Start
    config: RunConfig
    site: Site
    folder: RunFolder
    say: Say
    beside: Beside = field(default_factory=lambda: _beside)
    may_begin: Callable[[], Awaitable[None]] = _at_once
    succeeded: Callable[[], None] = lambda: None

    async def run(self, node: GossipNode) -> None:
        """Go on where the last finished round ended, to the end of the last one.

        Raises
        ------
        FedappError
            If the site cannot train, or too few neighbours' models came.
        """
        self.folder.write_status("running")
        try:
            await self._run(node)
        except FedappError as error:
            self.folder.write_status("failed", str(error), error.exit_code)
            raise
        except asyncio.CancelledError:
            self.folder.write_status("stopped", "it was told to end")
            raise

    async def _run(self, node: GossipNode) -> None:
        described = await self.beside(lambda: self._do(self._instruction(Action.DESCRIBE, 0)))
        about = {self.start.name: described.description}
        self.folder.write_config(self.config, versions(), sites=about, run=self.start.run)
        initial = await self.beside(lambda: self._initial(described.description["label_map"]))
        done, rounds = self._done(), self.config.federation.rounds
        if done:
            self.say(f"{node.name} goes on after round {done} of {rounds}")
        while done < rounds:
            await self.may_begin()
            round = min(rounds, max(done + 1, _round_of_the_others(node)))
            await self._round(node, round, initial)
            self.succeeded()
            done = round
        peft_config = described.description["peft_config"]
        model, card = self._model(initial), self._card()
        save_exported(self.config, model, self.folder.adapter, peft_config, card)
        self.folder.write_status("completed")
        await self._linger(node, rounds)

    async def _round(self, node: GossipNode, round: int, initial: Adapter) -> None:
        payload = {"adapter": pack(initial)}
        mailbox = Mailbox.of(self._states, node.name, self.start.run)
        letter = await asyncio.to_thread(mailbox.outgoing, round)
        trained = Reply(node.name, round, Action.PUBLISH)
        # What peers may have stays as it is, also where training again would give other bits.
        if letter is None or node.published != round:
            trained = await self.beside(
                lambda: self._do(self._instruction(Action.PUBLISH, round, payloads=payload))
            )
            letter = await asyncio.to_thread(mailbox.outgoing, round)
        if letter is None:
            raise GossipError("nothing is in the mailbox", site=node.name, round=round)
        envelope = await node.publish(
            round, letter.payload, layout_digest=letter.terms, codec=letter.codec
        )
        p2p = self.config.p2p
        updates = await node.gather(round, deadline=p2p.gather_timeout, minimum=p2p.minimum)
        delivery = replace(
            deliver(updates, node.origins, envelope.payload_digest),
            degrees=self.start.degrees,
            traffic=replace(node.traffic.rounds[round]),
        )
        await asyncio.to_thread(mailbox.deliver, round, delivery)
        mixed = await self.beside(
            lambda: self._do(self._instruction(Action.MIX, round, payloads=payload))
        )
        received = sum(len(one.payload) for one in delivery.letters)
        self._record(join_halves(trained, mixed), round, len(letter.payload), received)

    def _record(self, reply: Reply, round: int, sent: int, received: int) -> None:
        rows = list(site_rows(reply, round, bytes_up=sent, bytes_down=received))
        self.folder.append_metrics(rows)
        ledger = Mailbox.of(self._states, self.start.name, self.start.run).folder.parent
        # Whole at every moment: the report of a run that goes on reads it.
        write_bytes(self.folder.ledger / "ledger.jsonl", (ledger / "ledger.jsonl").read_bytes())
        metric = headline(self.config)
        value = reply.metrics.get("personal/validation", {}).get(metric)
        result = "" if value is None else f", {title(metric).lower()} on validation {value:.3f}"
        self.say(
            f"{reply.site}: round {round} of {self.config.federation.rounds}: accepted "
            f"{reply.numbers['neighbours_accepted']:.0f} of "
            f"{reply.numbers['neighbours_heard']:.0f} neighbours{result}"
        )

    async def _linger(self, node: GossipNode, rounds: int) -> None:
        """Stay until everybody that is heard has the last model, or had the time for it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.config.p2p.gather_timeout
        while loop.time() < end:
            waiting = [
                peer.name
                for peer in node.membership
                if 0 < peer.round <= rounds and node.membership.alive(peer.name)
            ]
            if not waiting:
                return
            await asyncio.sleep(_LOOK)

    def _instruction(self, action: Action, round: int, **more: Any) -> Instruction:
        last = round == self.config.federation.rounds
        return Instruction(
            action=action,
            site=self.start.name,
            config=self.config,
            round=round,
            personal_splits=("test",) if last else (),
            run=self.start.run,
            state_folder=str(self._states),
            **more,
        )

    def _do(self, instruction: Instruction) -> Reply:
        reply = self.site.execute(instruction)
        failure = reply.failure
        if failure is None:
            return reply
        if failure.kind == PolicyRefused.__name__:
            raise PolicyRefused(failure.message, reason=failure.reason)
        # Its kind says whether another attempt makes sense.
        raise _KINDS.get(failure.kind, FedappError)(failure.message)

    def _initial(self, label_map: list[str]) -> Adapter:
        return load_resident(self.config, label_map).parameters.initial(self.config.seed)

    def _done(self) -> int:
        """Return the last round of which this site has recorded the result."""
        file = self.folder.metrics_file
        if file.exists():  # a kill may have cut its last line short
            self.folder.truncate_metrics(file.read_bytes().rfind(b"\n") + 1)
        rows = self.folder.read_metrics()
        return max((int(row["round"]) for row in rows), default=0)

    def _model(self, initial: Adapter) -> Adapter:
        from client_app.state import SiteStates

        states = SiteStates(self._states, self.start.name, self.start.run, initial.layout_digest())
        kept = states.load(self.config.federation.rounds + 1).state
        model: Adapter = kept.get("method.model", initial)
        return model

    def _card(self) -> str:
        site = self.site.data.site if isinstance(self.site, LocalSite) else self.start.name
        return (
            f"# The model of {site}\n\nTrained with method `{self.config.method}` of fedapp on the "
            "site's own records, and mixed with the models of neighbours that it believed. It is "
            "fitted to this site; nothing here says that it is fit for any clinical use.\n"
        )

    @property
    def _states(self) -> Path:
        return Path(self.start.state) / "sites"


def _round_of_the_others(node: GossipNode) -> int:
    """Return the round in which half of the peers that are heard are, or a later one.

    Whoever was away joins them there: what is past for them, they do not keep.
    """
    alive = (peer for peer in node.membership if node.membership.alive(peer.name))
    asked = sorted(peer.round for peer in alive if peer.round)
    return asked[(len(asked) - 1) // 2] if asked else 0


async def _beside(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread that the process need not wait for when it is told to end."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(cast("T", found))

    def run() -> None:
        try:
            found, error = work(), None
        except BaseException as caught:  # it belongs to who waits
            found, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=run, daemon=True).start()
    return await result
