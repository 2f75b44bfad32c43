"""One round: ask the sampled sites, validate what comes, merge it, or name who is missing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from flwr.serverapp import Grid

from fedapp.adapter import Adapter
from fedapp.blas import single_thread
from fedapp.config import RunConfig
from fedapp.errors import MergeRefused, MissingReplies, UpdateRefused
from fedapp.exchange import Action, Instruction, Metrics, Reply
from fedapp.validation import check_update
from server_app.basis_phase import gather_bases
from server_app.collect import POLL_SECONDS, Problem, Tick, collect
from server_app.log import log, names, warn
from server_app.packer import NOWHERE, Packer, RunPlace, site_config
from server_app.rejoin import wait_for_sites
from server_app.roster import Roster
from server_app.sampling import needed_replies
from server_app.strategies.base import Aggregate, BaseStrategy
from server_app.updates import Update

BROKEN = frozenset({"error", "died"})
"""Problems after which a client app or its process has to start anew."""
PAUSE_SECONDS = 1.0  # before the first repeat; twice as long before every further one


@dataclass
class RoundResult:
    """What a finished round leaves: replies and problems by site, and what it cost."""

    replies: dict[str, Reply] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    first: dict[str, Problem] = field(default_factory=dict)  # of each site, also if a repeat helped
    diagnostics: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)  # numbers of what preceded the training
    retries: int = 0
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)


def personal_splits(config: RunConfig, round: int) -> tuple[str, ...]:
    """Return the splits that only the personal model is evaluated on in ``round``.

    The test metrics of the personal models are those of each site's last training, which with
    sampling may be any round. The received model's test comes after the last round.
    """
    last = round == config.federation.rounds
    return ("test",) if last or config.federation.fraction < 1 else ()


def train_instructions(
    strategy: BaseStrategy,
    round: int,
    sites: Iterable[str],
    packer: Packer,
    place: RunPlace = NOWHERE,
    evaluated: Collection[str] = (),
) -> list[Instruction]:
    """Return what each site is asked in a round; ``evaluated`` ones know the received model."""
    config = site_config(strategy.config)
    later = personal_splits(config, round)
    return [
        Instruction(
            action=Action.TRAIN,
            site=site,
            config=config,
            round=round,
            payloads=packer.pack(strategy.sends(round, site)),
            settings=strategy.sends_settings(round, site),
            splits=() if site in evaluated else ("validation",),
            personal_splits=(*(("validation",) if site in evaluated else ()), *later),
            run=place.run,
            progress_file=place.progress_file,
            state_folder=place.state_folder,
        )
        for site in sites
    ]


def validate(
    strategy: BaseStrategy, round: int, reply: Reply, records: int | None = None
) -> Update:
    """Return the update of a reply; ``records``: the training records that the site announced.

    Raises
    ------
    UpdateRefused
        With a reason of `fedapp.validation.REASONS`.
    """
    federation = strategy.config.federation
    expected = strategy.expects(round, reply.site)
    extra = sorted(set(reply.payloads) - set(expected))
    if extra:
        raise UpdateRefused(
            f"payload '{extra[0]}' was not asked for",
            reason="wrong-layout",
            site=reply.site,
            round=round,
        )
    # In fp32 a site sends its adapter, else the increment on what it received.
    bases = strategy.sends(round, reply.site) if federation.codec != "fp32" else {}
    decoded: dict[str, Adapter] = {}
    for name, template in expected.items():
        adapter = check_update(
            reply.payloads.get(name),
            site=reply.site,
            round=round,
            expected_layout=template,
            reply_round=reply.round,
            weight=reply.weight,
            max_bytes=int(federation.max_payload_mb * 1e6),
            codec=federation.codec,
            records=records,
            base=bases.get(name),
        )
        if federation.codec == "fp32":  # a view of the payload; others would cost memory per site
            decoded[name] = adapter
    return Update(
        site=reply.site,
        weight=reply.weight,
        packed=reply.payloads["adapter"],
        payloads=reply.payloads,
        numbers=reply.numbers,
        decoded=decoded,
        bases=bases,
    )


def merge_usable(
    strategy: BaseStrategy,
    round: int,
    updates: dict[str, Update],
    problems: dict[str, Problem],
    needed: int,
) -> Aggregate | None:
    """Merge if there are at least ``needed`` updates; return None if there are not.

    An update that the method cannot use moves from ``updates`` to ``problems``.

    Raises
    ------
    MergeRefused
        If the merge fails for no single site's fault.
    """
    while updates and len(updates) >= needed:
        try:
            with single_thread():
                return strategy.aggregate(round, list(updates.values()))
        except (UpdateRefused, MergeRefused) as error:
            if error.site is None or error.site not in updates:
                raise
            del updates[error.site]
            problems[error.site] = Problem("not mergeable", f"update refused: {error.message}")
            warn(str(error))
    return None


class TrainingRound:
    """A round with its retries; after a failure the strategy's model is the previous one.

    Parameters
    ----------
    grid : Grid
    strategy : BaseStrategy
    roster : Roster
    place : RunPlace, optional
    tick : callable, optional
        Called while waiting.
    """

    def __init__(
        self,
        grid: Grid,
        strategy: BaseStrategy,
        roster: Roster,
        place: RunPlace = NOWHERE,
        tick: Tick | None = None,
    ) -> None:
        self._grid, self._strategy, self._roster = grid, strategy, roster
        self._place, self._tick = place, tick
        self._federation = strategy.config.federation
        self._evaluated: dict[str, Mapping[str, Metrics]] = {}

    def run(self, round: int, asked: list[str]) -> RoundResult:
        """Ask until enough updates are there and merge them.

        A repeat asks only the sites whose update is missing; the others trained on the same model
        already. A site whose failure is lasting (training diverged, say) is not asked again, since
        the same model and seed give the same result; if the round cannot succeed without it, it
        ends at once.

        Raises
        ------
        MissingReplies
            After the last repeat, with every missing site and its reason.
        MergeRefused
            If the updates merge to something that is not finite and no other update can still come.
        """
        result = RoundResult()
        packer = Packer()
        self._prepare(round, asked, packer, result)
        updates: dict[str, Update] = {}
        refused: MergeRefused | None = None
        needed, missing = len(asked), asked
        for attempt in range(self._federation.max_round_retries + 1):
            result.retries = attempt
            if attempt:
                log(f"round {round}: repeat {attempt}, asking {names(missing)}")
                self._pause(attempt, [result.problems[site] for site in missing])
                wait_for_sites(self._grid, self._roster, missing, self._strategy.config, self._tick)
            self._gather(round, missing, packer, updates, result)
            needed = self._needed(asked, result)
            refused = None
            try:
                if self._merge(round, needed, updates, result):
                    return result
            except MergeRefused as error:
                refused = error
                warn(str(error))
            missing = [
                site for site in asked if site not in updates and not result.problems[site].lasting
            ]
            if not missing or len(updates) + len(missing) < needed:
                break
        if refused is not None:
            raise refused
        raise _missing(round, len(asked), needed, len(updates), result)

    def _needed(self, asked: list[str], result: RoundResult) -> int:
        """Return how many updates are needed: a site whose policy says no was not really asked."""
        excused = sum(problem.by_policy for problem in result.problems.values())
        return max(1, needed_replies(len(asked) - excused, self._strategy.config))

    def _prepare(self, round: int, asked: list[str], packer: Packer, result: RoundResult) -> None:
        """Let the sites send what the strategy needs before they train, if it needs anything."""
        if self._strategy.basis_layout() is None:
            return
        phase = gather_bases(
            self._grid, self._strategy, self._roster, round, asked, packer, self._place, self._tick
        )
        result.bytes_down, result.bytes_up = phase.bytes_down, phase.bytes_up
        result.before = phase.numbers()
        self._evaluated = phase.metrics

    def _pause(self, attempt: int, problems: list[Problem]) -> None:
        """Give what broke the time to come up again, more at every repeat."""
        if not any(problem.kind in BROKEN for problem in problems):
            return
        end = time.monotonic() + PAUSE_SECONDS * 2 ** (attempt - 1)
        while (left := end - time.monotonic()) > 0:
            if self._tick is not None:
                self._tick()
            time.sleep(min(POLL_SECONDS, left))

    def _gather(
        self,
        round: int,
        sites: list[str],
        packer: Packer,
        updates: dict[str, Update],
        result: RoundResult,
    ) -> None:
        """Ask ``sites``, the largest first, and put what comes in ``updates`` and ``result``."""
        instructions = train_instructions(
            self._strategy,
            round,
            self._roster.largest_first(sites),
            packer,
            self._place,
            self._evaluated,
        )
        collected = collect(
            self._grid,
            instructions,
            self._roster.nodes,
            self._federation.round_timeout,
            self._tick,
        )
        for total, more in (
            (result.bytes_down, collected.bytes_down),
            (result.bytes_up, collected.bytes_up),
        ):
            for site, count in more.items():
                total[site] = total.get(site, 0) + count
        for site in sites:
            problem = collected.problems.get(site)
            if problem is None:
                problem = self._take(round, collected.replies[site], updates, result)
            if problem is not None:
                result.problems[site] = problem
                result.first.setdefault(site, problem)
                warn(f"site {site}, round {round}: {problem.reason}")

    def _take(
        self, round: int, reply: Reply, updates: dict[str, Update], result: RoundResult
    ) -> Problem | None:
        announced = self._roster.training_records(reply.site)
        try:
            updates[reply.site] = validate(self._strategy, round, reply, announced)
        except UpdateRefused as error:
            return Problem(error.reason, f"update refused ({error.reason}): {error.message}")
        result.problems.pop(reply.site, None)
        metrics = {**self._evaluated.get(reply.site, {}), **reply.metrics}
        result.replies[reply.site] = replace(reply, metrics=metrics)
        return None

    def _merge(
        self, round: int, needed: int, updates: dict[str, Update], result: RoundResult
    ) -> bool:
        """Merge if there are enough updates; one that the method cannot use becomes a problem."""
        try:
            aggregate = merge_usable(self._strategy, round, updates, result.problems, needed)
        finally:
            result.replies = {site: result.replies[site] for site in updates}
        if aggregate is None:
            return False
        result.diagnostics = {**result.before, **aggregate.diagnostics}
        return True


def _missing(
    round: int, asked: int, needed: int, valid: int, result: RoundResult
) -> MissingReplies:
    reasons = "; ".join(
        f"site {site}: {_cause(result.first.get(site, problem), problem)}"
        for site, problem in sorted(result.problems.items())
    )
    return MissingReplies(
        f"{valid} of {asked} sites sent a valid update, at least {needed} needed; the "
        f"previous model is kept. Missing: {reasons}. Mend these sites and resume, or resume "
        "with a lower federation.min-replies",
        round=round,
    )


def _cause(first: Problem, last: Problem) -> str:
    """Name the first cause; what a repeat met is often only its consequence."""
    if first.kind == last.kind:
        return first.reason
    return f"{first.reason} (at the last repeat: {last.reason})"
