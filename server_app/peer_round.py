"""One round without a server's model: sites train, their nodes exchange, sites mix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from fedapp.errors import MissingReplies
from fedapp.exchange import Action, Instruction, Reply
from fedapp.site_rows import join_halves
from server_app.collect import Problem, Tick, collect
from server_app.log import log, names, warn
from server_app.packer import Packer, RunPlace, site_config
from server_app.rejoin import wait_for_sites
from server_app.roster import Roster
from server_app.sampling import needed_replies
from server_app.strategies.base import BaseStrategy
from server_app.training_round import RoundResult, personal_splits

if TYPE_CHECKING:
    from fedapp.gossip.post import Post

_MEANS = ("own_weight", "neighbours_heard", "neighbours_accepted", "null_agreement", "mixing_error")
"""What sites report of their rounds, of which the mean over the sites is recorded."""


@dataclass
class _Phase:
    """What came of one half of the round, by site."""

    replies: dict[str, Reply] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)


class PeerRound:
    """A round in two phases, with repeats of each; see `server_app.training_round.TrainingRound`.

    Nothing waits for a site that waits for another one: the exchange lies between the phases, so
    that any number of sites may share any number of workers.

    Parameters
    ----------
    grid, strategy, roster, place, tick
        As of `TrainingRound`.
    post : Post
        The sites' nodes.
    """

    def __init__(
        self,
        grid: Grid,
        strategy: BaseStrategy,
        roster: Roster,
        place: RunPlace,
        post: Post,
        tick: Tick | None = None,
    ) -> None:
        self._grid, self._strategy, self._roster = grid, strategy, roster
        self._place, self._post, self._tick = place, post, tick
        self._federation = strategy.config.federation
        self._packer = Packer()
        self._retries = 0

    def run(self, round: int, asked: list[str]) -> RoundResult:
        """Let the sites train, exchange and mix.

        Raises
        ------
        MissingReplies
            If fewer sites than needed did one of the two, with every missing site and its reason.
        GossipError
            If the exchange fails.
        """
        needed = needed_replies(len(asked), self._strategy.config)
        trained = self._phase(Action.PUBLISH, round, asked, needed)
        published = sorted(trained.replies)
        carried = self._post.exchange(round, published)
        mixed = self._phase(Action.MIX, round, published, needed)
        replies = {
            site: join_halves(trained.replies[site], reply) for site, reply in mixed.replies.items()
        }
        return RoundResult(
            replies=replies,
            problems={**trained.problems, **mixed.problems},
            diagnostics=_means(replies.values()),
            retries=self._retries,
            bytes_down=dict(carried.received),
            bytes_up=dict(carried.sent),
        )

    def _phase(self, action: Action, round: int, asked: list[str], needed: int) -> _Phase:
        phase, missing = _Phase(), asked
        for attempt in range(self._federation.max_round_retries + 1):
            if attempt:
                self._retries += 1
                log(f"round {round}: repeat {attempt} of {action}, asking {names(missing)}")
                wait_for_sites(self._grid, self._roster, missing, self._strategy.config, self._tick)
            self._ask(action, round, missing, phase)
            missing = [
                site
                for site in asked
                if site not in phase.replies and not phase.problems[site].lasting
            ]
            if not missing or len(phase.replies) + len(missing) < needed:
                break
        if len(phase.replies) < needed:
            reasons = "; ".join(
                f"site {site}: {problem.reason}" for site, problem in sorted(phase.problems.items())
            )
            raise MissingReplies(
                f"{len(phase.replies)} of {len(asked)} sites did what {action} asks, at least "
                f"{needed} needed; their models are as before. Missing: {reasons}. Mend these "
                "sites and resume, or resume with a lower federation.min-replies",
                round=round,
            )
        return phase

    def _ask(self, action: Action, round: int, sites: list[str], phase: _Phase) -> None:
        collected = collect(
            self._grid,
            self._instructions(action, round, self._roster.largest_first(sites)),
            self._roster.nodes,
            self._federation.round_timeout,
            self._tick,
        )
        for site in sites:
            problem = collected.problems.get(site)
            if problem is None:
                phase.problems.pop(site, None)
                phase.replies[site] = collected.replies[site]
            else:
                phase.problems[site] = problem
                warn(f"site {site}, round {round}: {problem.reason}")

    def _instructions(self, action: Action, round: int, sites: list[str]) -> list[Instruction]:
        config = self._strategy.config
        return [
            Instruction(
                action=action,
                site=site,
                config=site_config(config),
                round=round,
                payloads=self._packer.pack(self._strategy.payloads(round, site)),
                splits=("validation",),
                personal_splits=personal_splits(config, round),
                run=self._place.run,
                progress_file=self._place.progress_file,
                state_folder=self._place.state_folder,
            )
            for site in sites
        ]


def _means(replies: Iterable[Reply]) -> dict[str, float]:
    reported: list[Mapping[str, float]] = [reply.numbers for reply in replies]
    values = {name: [row[name] for row in reported if name in row] for name in _MEANS}
    return {name: fmean(found) for name, found in values.items() if found}
