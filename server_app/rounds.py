"""The round loop: handshake, first model, rounds with checkpoints, baseline, final test.

Flower's own loop waits for ever, ends at one bad reply and cannot resume; this one has a deadline
on every wait, names whoever is missing, and continues from a checkpoint bit for bit.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError, HandshakeError
from fedapp.exchange import Action, Reply
from fedapp.faults import attackers, rehearsal
from fedapp.registry import METHODS
from fedapp.results import RunFolder, versions
from fedapp.tasks import HEADLINES
from fedapp.text import clean
from server_app.checkpoint import (
    TOTALS,
    Checkpoint,
    check_roster,
    check_settings,
    newest_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from server_app.finish import write_adapter, write_results
from server_app.handshake import shake_hands
from server_app.initial import fetch_initial
from server_app.log import log, names, warn
from server_app.measure import Measurement, measure
from server_app.metrics import Row, round_rows
from server_app.packer import RunPlace
from server_app.peer_round import PeerRound
from server_app.post import post_of, show_ledgers
from server_app.progress import Progress
from server_app.roster import Roster
from server_app.run_audit import RunAudit
from server_app.sampling import sample, training_sites
from server_app.strategies.base import BaseStrategy
from server_app.training_round import TrainingRound

if TYPE_CHECKING:
    from fedapp.gossip.post import Post

OnRound = Callable[[int, Adapter], None]


def _no_totals() -> dict[str, float]:
    return dict.fromkeys(TOTALS, 0.0)


@dataclass
class RoundLoop:
    """One run from handshake to results.

    Attributes
    ----------
    grid : Grid
    strategy : BaseStrategy
    folder : RunFolder
        Of a new run, or of the run to resume.
    simulated : bool
        Whether the sites share this machine's disk, so that they can report progress in a file and
        keep what they remember in the run folder.
    replace_initial : callable, optional
        Takes the sites' initial adapter and returns the one to begin with.
    on_round : callable, optional
        Called with round and model, before round 1 and after every round.
    """

    grid: Grid
    strategy: BaseStrategy
    folder: RunFolder
    simulated: bool = False
    replace_initial: Callable[[Adapter], Adapter] | None = None
    on_round: OnRound | None = None
    totals: dict[str, float] = field(default_factory=_no_totals)

    def __post_init__(self) -> None:
        self.config: RunConfig = self.strategy.config
        self._started = time.monotonic()
        self._earlier_seconds = 0.0
        path = self.folder.progress_file if self.simulated else None
        self._place = RunPlace(
            run=secrets.token_hex(16),
            progress_file=str(path) if path else "",
            state_folder=str(self.folder.sites) if self.simulated else "",
        )
        self._progress = Progress(path, self.config.federation.progress_interval)
        self._initial: Adapter | None = None
        self._missing: dict[str, str] = {}
        self._kept: dict[str, int] = {}  # site -> last round after which it kept something

    def run(self) -> dict[str, Any]:
        """Run to the end and return the content of ``summary.json``.

        Raises
        ------
        FedappError
            With one sentence; the newest checkpoint holds the model before it.
        """
        self._audit = RunAudit(self.folder.path)
        with self._audit:
            return self._run()

    def _run(self) -> dict[str, Any]:
        saved = self._saved()
        self._progress.phase("handshake", [], 0.0, 0.0)
        roster = shake_hands(self.grid, self.config, self._progress.tick)
        self.strategy.roster = roster
        done = self._resume(saved, roster) if saved else self._begin(roster)
        self._audit.handshake(roster, self._place.run)
        self.strategy.summary()
        if told := rehearsal(self.config):
            warn(told)
        self._progress.start(self._share(done))
        with self._exchange(roster) as post:
            for round in range(done + 1, self.config.federation.rounds + 1):
                self._round(round, roster, post)
        # Before the measurements, which may take long or fail: the model is what counts.
        self._count_time()
        write_adapter(self.folder, self.strategy, roster, self.totals)
        if self.config.federation.local_only:
            self._local_only(roster)
        if not self._peers:  # else each site has tested its own model in the last round
            self._final_test(roster)
        self._count_time()
        return write_results(self.folder, self.strategy, roster, self.totals, self._missing)

    # ---- beginnings -------------------------------------------------------------------------

    def _saved(self) -> Checkpoint | None:
        if not self.config.resume:
            return None
        self.folder.remove_leftovers()
        remove_leftovers(self.folder.checkpoint)
        saved = newest_checkpoint(self.folder.checkpoint)
        threads = saved.settings.get("train.threads")
        self._pin_threads(threads if type(threads) is int else 0)
        check_settings(saved.settings, self.config)
        return saved

    def _begin(self, roster: Roster) -> int:
        self._pin_threads(roster.reference.threads)
        initial = self._initial_adapter(roster)
        if self.replace_initial is not None:
            initial = self.replace_initial(initial)
        self.strategy.begin(initial)
        self._write_config(self.config, roster)
        self._checkpoint(0, roster)
        if self.on_round is not None:
            self.on_round(0, self.strategy.exported().adapter)
        return 0

    def _resume(self, saved: Checkpoint, roster: Roster) -> int:
        check_roster(saved.roster, roster.digests())
        if saved.sampler != self._sampler(saved.round, roster):
            raise CheckpointError(
                f"the sites drawn for round {saved.round + 1} differ from the checkpoint's; "
                "resume with the same fedapp and numpy versions"
            )
        try:
            self.strategy.load_state_dict(saved.strategy)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint of round {saved.round} is not of {self.config.method} as this version "
                f"keeps it ({clean(repr(error), 200)}); resume with the version of fedapp that "
                "wrote it"
            ) from None
        self._place = replace(self._place, run=saved.run)
        self.folder.write_status("running")  # nothing was changed until here, see `end_status`
        # Some settings may differ now (`fedapp.config.NEUTRAL`); the next resume begins with them.
        place = {"name": self.folder.path.name, "output-dir": str(self.folder.path.parent)}
        self._write_config(self.config.with_changes({**place, "resume": ""}), roster)
        self.folder.truncate_metrics(saved.metrics_size)
        # A damaged file is noticed now, not after the last round.
        for row in self.folder.read_metrics():
            if "state_round" in row:
                self._kept[row["site"]] = row["round"]
        self.totals = dict(saved.totals)
        self._earlier_seconds = saved.totals["wall_seconds"]
        log(f"resumed after round {saved.round} of {self.config.federation.rounds}")
        return saved.round

    def _pin_threads(self, threads: int) -> None:
        """Make what the simulation assigned a setting of the run: sums depend on it."""
        if not self.config.train.threads:
            pinned = self.config.with_changes({"train.threads": threads})
            self.config = self.strategy.config = pinned

    def _initial_adapter(self, roster: Roster) -> Adapter:
        if self._initial is None:
            self._initial, received = fetch_initial(
                self.grid, self.config, roster, self._progress.tick
            )
            self.totals["bytes_up"] += received
        return self._initial

    def _write_config(self, config: RunConfig, roster: Roster) -> None:
        """Write ``config.json`` again, now with the sites."""
        sites = {
            site: member.description.model_dump(exclude={"peft_config", "clock"})
            for site, member in roster.members.items()
        }
        torch_version = roster.reference.torch_version
        told = rehearsal(config)
        more = {"rehearsal": told} if told else {}
        torch = {"torch": torch_version}
        self.folder.write_config(config, {**versions(), **torch}, sites=sites, **more)

    # ---- rounds -----------------------------------------------------------------------------

    def _exchange(self, roster: Roster) -> AbstractContextManager[Post | None]:
        """Return the nodes of sites that exchange their models, if the method has such."""
        if not self._peers:
            return nullcontext()
        if not self.simulated:
            raise ConfigError(
                f"method {self.config.method} under a coordinator is a simulation, in which this "
                "process runs every site's node; between hospitals start `fedapp peer` at each"
            )
        return post_of(self.folder, self._place.run, roster.sites, self.config)

    def _round(self, round: int, roster: Roster, post: Post | None = None) -> None:
        started = time.monotonic()
        asked = sample(roster.sites, self.config, round)
        title = f"round {round}/{self.config.federation.rounds}"
        log(f"{title} · asking {names(asked)}")
        false = {
            site: kind for site, kind in attackers(self.config, round).items() if site in asked
        }
        if false:
            warn(f"{title}: faulty on purpose: {', '.join(f'{s} ({k})' for s, k in false.items())}")
        self._progress.phase(title, asked, self._share(round - 1), self._share(round))
        place, tick = self._place, self._progress.tick
        if post is None:
            result = TrainingRound(self.grid, self.strategy, roster, place, tick).run(round, asked)
        else:
            result = PeerRound(self.grid, self.strategy, roster, place, post, tick).run(
                round, asked
            )
            show_ledgers(self.folder, place.run, asked)
        self._check_kept(result.replies, round)
        self._audit.round(round, asked, result.replies, result.problems)
        faulty = self.config.faults.sites
        rows = round_rows(result, round, time.monotonic() - started, faulty)
        if false:
            rows[-1]["faulty"] = false
        self._append(rows, round)
        self.totals["training_seconds"] += rows[-1]["training_seconds"]
        self.totals["bytes_up"] += rows[-1]["bytes_up"]
        self.totals["bytes_down"] += rows[-1]["bytes_down"]
        self._checkpoint(round, roster)
        log(f"{title} · {_describe(rows[-1])}")
        if self.on_round is not None:
            self.on_round(round, self.strategy.exported().adapter)

    def _check_kept(self, replies: Mapping[str, Reply], round: int) -> None:
        """Tell of a site that lost what it kept between its rounds."""
        for site, reply in sorted(replies.items()):
            if "state_round" not in reply.numbers:
                continue
            found, last = int(reply.numbers["state_round"]), self._kept.get(site, 0)
            if found < last:
                warn(
                    f"site {site}, round {round}: what it kept after round {last} is lost, it "
                    f"continued from {f'round {found}' if found else 'zero'}; mend its state folder"
                )
            self._kept[site] = round

    def _local_only(self, roster: Roster) -> None:
        """Let every training site train alone with the whole run's budget, for comparison."""
        sites = roster.largest_first(training_sites(roster.sites, self.config))
        self._progress.phase("local-only", sites, self._share(self._rounds), 1.0)
        log("local-only baseline · every site trains alone")
        try:
            payload = {"adapter": self._initial_adapter(roster)}
        except HandshakeError as error:
            warn(f"no local-only baseline: {error.message}")
            self._missing |= {f"{site} {Action.LOCAL_ONLY}": error.message for site in sites}
            return
        timeout = self.config.federation.round_timeout * self._rounds
        payloads = {site: payload for site in sites}
        self._measure(roster, Action.LOCAL_ONLY, payloads, timeout, ("validation", "test"))

    def _final_test(self, roster: Roster) -> None:
        """Test the final model at every site, held-out ones included."""
        sites = roster.largest_first(roster.sites)
        self._progress.phase("final test", sites, 1.0, 1.0)
        payloads = {site: self.strategy.evaluation_payloads(site) for site in sites}
        timeout = self.config.federation.round_timeout
        self._measure(roster, Action.EVALUATE, payloads, timeout, ("test",))

    def _measure(
        self,
        roster: Roster,
        action: Action,
        payloads: Mapping[str, Mapping[str, Adapter]],
        timeout: float,
        splits: tuple[str, ...],
    ) -> None:
        what = Measurement(action, splits, timeout, self._place)
        tick = self._progress.tick
        measured = measure(self.grid, self.config, roster, what, payloads, tick)
        for key in ("training_seconds", "bytes_up", "bytes_down"):
            self.totals[key] += getattr(measured, key)
        self._check_kept(measured.replies, self._rounds)
        self._audit.refusals(self._rounds, action, measured.problems)
        self._append(measured.rows, self._rounds)
        self._missing |= {f"{site} {action}": why for site, why in measured.missing.items()}

    # ---- bookkeeping ------------------------------------------------------------------------

    @property
    def _peers(self) -> bool:
        """Whether sites exchange their models, so that there is none here."""
        return bool(METHODS[self.config.method].peer_rule)

    @property
    def _rounds(self) -> int:
        return self.config.federation.rounds

    def _share(self, round: int) -> float:
        """Share of the whole run's training that is done after ``round``."""
        federation = self.config.federation
        units = self._rounds * federation.fraction
        return (
            round * federation.fraction / (units + (self._rounds if federation.local_only else 0))
        )

    def _sampler(self, round: int, roster: Roster) -> dict[str, Any]:
        return {"seed": self.config.seed, "next": sample(roster.sites, self.config, round + 1)}

    def _count_time(self) -> None:
        self.totals["wall_seconds"] = self._earlier_seconds + time.monotonic() - self._started

    def _append(self, rows: list[Row], round: int) -> None:
        try:
            self.folder.append_metrics(rows)
        except OSError as error:
            raise _cannot_write(self.folder.metrics_file, error, round) from None

    def _checkpoint(self, round: int, roster: Roster) -> None:
        self._count_time()
        checkpoint = Checkpoint(
            round=round,
            run=self._place.run,
            settings=self.config.to_flat(),
            roster=roster.digests(),
            sampler=self._sampler(round, roster),
            strategy=self.strategy.state_dict(),
            totals=dict(self.totals),
            metrics_size=self.folder.metrics_size,
        )
        keep = self.config.federation.keep_checkpoints
        try:
            write_checkpoint(self.folder.checkpoint, checkpoint, keep)
        except OSError as error:
            raise _cannot_write(self.folder.checkpoint, error, round) from None


def _cannot_write(path: Path, error: OSError, round: int) -> CheckpointError:
    reason = error.strerror or str(error)
    return CheckpointError(
        f"{path} cannot be written: {reason}; earlier checkpoints are intact, make room and resume",
        round=round,
    )


def _describe(row: Row) -> str:
    did = "sites mixed" if "own_weight" in row else "updates merged"
    parts = [f"{row['replies']} {did} in {row['seconds']:.1f} s"]
    if "neighbours_accepted" in row:
        accepted, heard = row["neighbours_accepted"], row["neighbours_heard"]
        parts.append(f"accepted {accepted:.1f} of {heard:.1f} neighbours")
    metric = next((name for name in HEADLINES if name in row), None)
    if metric is not None:
        parts.append(f"personal validation {HEADLINES[metric]} {row[metric]:.3f}")
    if "overlap" in row:
        parts.append(f"overlap {row['overlap']:.3f}")
    if "cancellation" in row:
        parts.append(f"cancellation {row['cancellation']:.3f}")
    return ", ".join(parts)
