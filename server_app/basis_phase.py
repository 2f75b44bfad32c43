"""The first phase of a round of `dysco`: every site proposes bases before anyone trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from fedapp.adapter import Adapter
from fedapp.blas import single_thread
from fedapp.errors import MissingReplies, UpdateRefused
from fedapp.exchange import Action, Instruction, Metrics, Reply
from fedapp.validation import check_bases
from server_app.collect import Collected, Problem, Tick, collect
from server_app.log import warn
from server_app.packer import Packer, RunPlace, site_config
from server_app.rejoin import wait_for_sites
from server_app.roster import Roster
from server_app.sampling import needed_replies

if TYPE_CHECKING:
    from server_app.strategies.base import BaseStrategy


@dataclass
class BasisPhase:
    """What came of it, by site, and what it cost.

    Attributes
    ----------
    bases : dict of str to Adapter
    problems : dict of str to Problem
    reported : dict of str to mapping
        Numbers that the sites report.
    metrics : dict of str to mapping
        The evaluation of the received model, on whose records the activations were looked at.
    bytes_down, bytes_up : dict of str to int
    """

    bases: dict[str, Adapter] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    reported: dict[str, Mapping[str, float]] = field(default_factory=dict)
    metrics: dict[str, Mapping[str, Metrics]] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """Return numbers for the federation's row: bytes, and means of what the sites report."""
        means = {
            key: [numbers[key] for numbers in self.reported.values() if key in numbers]
            for key in ("insensitive_share", "basis_tokens")
        }
        seconds = [numbers["seconds"] for numbers in self.reported.values() if "seconds" in numbers]
        return {
            "basis_bytes_up": float(sum(self.bytes_up.values())),
            "basis_bytes_down": float(sum(self.bytes_down.values())),
            "basis_replies": float(len(self.bases)),
            "basis_seconds": max(seconds, default=0.0),
            **{key: sum(values) / len(values) for key, values in means.items() if values},
        }


def gather_bases(
    grid: Grid,
    strategy: BaseStrategy,
    roster: Roster,
    round: int,
    sites: list[str],
    packer: Packer,
    place: RunPlace,
    tick: Tick | None = None,
) -> BasisPhase:
    """Ask ``sites`` for their bases and give them to the strategy.

    The sites evaluate the received model on the way and are not asked to once more: the forward
    passes that show the activations are those of the evaluation.

    Sites that fail are asked again as often as a round is repeated, while fewer bases are there
    than updates are needed; after that the round goes on with those that came.

    Raises
    ------
    MissingReplies
        If no site has sent a basis.
    """
    phase, missing = BasisPhase(), list(sites)
    needed = needed_replies(len(sites), strategy.config)
    for attempt in range(strategy.config.federation.max_round_retries + 1):
        if attempt:
            wait_for_sites(grid, roster, missing, strategy.config, tick)
        instructions = _instructions(strategy, round, roster.largest_first(missing), packer, place)
        timeout = strategy.config.federation.round_timeout
        got = collect(grid, instructions, roster.nodes, timeout, tick)
        _take(strategy, round, missing, got, phase)
        missing = [site for site in missing if _worth_asking(phase, site)]
        if not missing or len(phase.bases) >= needed:
            break
    if not phase.bases:
        reasons = "; ".join(
            f"site {site}: {p.reason}" for site, p in sorted(phase.problems.items())
        )
        raise MissingReplies(
            f"none of {len(sites)} sites sent a basis; the previous model is kept. {reasons}. "
            "Mend these sites and resume",
            round=round,
        )
    with single_thread():
        strategy.take_bases(round, phase.bases, sites)
    return phase


def _worth_asking(phase: BasisPhase, site: str) -> bool:
    return site not in phase.bases and not phase.problems[site].lasting


def _instructions(
    strategy: BaseStrategy, round: int, sites: list[str], packer: Packer, place: RunPlace
) -> list[Instruction]:
    config = site_config(strategy.config)
    return [
        Instruction(
            action=Action.BASES,
            site=site,
            config=config,
            round=round,
            payloads=packer.pack(strategy.evaluation_payloads(site)),
            splits=("validation",),
            run=place.run,
            progress_file=place.progress_file,
            state_folder=place.state_folder,
        )
        for site in sites
    ]


def _take(
    strategy: BaseStrategy, round: int, sites: list[str], got: Collected, phase: BasisPhase
) -> None:
    """Put what came in the phase."""
    for total, more in ((phase.bytes_down, got.bytes_down), (phase.bytes_up, got.bytes_up)):
        for site, count in more.items():
            total[site] = total.get(site, 0) + count
    for site in sites:
        problem = got.problems.get(site)
        if problem is None:
            problem = _check(strategy, round, got.replies[site], phase)
        if problem is not None:
            phase.problems[site] = problem
            warn(f"site {site}, round {round}: no basis: {problem.reason}")


def _check(strategy: BaseStrategy, round: int, reply: Reply, phase: BasisPhase) -> Problem | None:
    try:
        phase.bases[reply.site] = check_bases(
            reply.payloads.get("bases"),
            site=reply.site,
            round=round,
            expected_layout=strategy.basis_layout() or {},
            reply_round=reply.round,
            max_bytes=int(strategy.config.federation.max_payload_mb * 1e6),
        )
    except UpdateRefused as error:
        return Problem(error.reason, f"basis refused ({error.reason}): {error.message}")
    phase.problems.pop(reply.site, None)
    phase.reported[reply.site] = reply.numbers
    phase.metrics[reply.site] = {
        key: metrics for key, metrics in reply.metrics.items() if key.startswith("received/")
    }
    return None
