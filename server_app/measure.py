"""Metrics that no model depends on: the local-only baseline and the final test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.serverapp import Grid

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, Reply
from server_app.collect import Problem, Tick, collect
from server_app.log import warn
from server_app.metrics import Row, site_rows
from server_app.packer import NOWHERE, Packer, RunPlace, site_config
from server_app.roster import Roster


@dataclass
class Measured:
    """Replies, their rows for ``metrics.jsonl``, the cost, and who is missing, with the reason."""

    replies: dict[str, Reply] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    training_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Measurement:
    """What every site is asked, and how long the coordinator waits (in seconds)."""

    action: Action
    splits: tuple[str, ...]
    timeout: float
    place: RunPlace = NOWHERE


def measure(
    grid: Grid,
    config: RunConfig,
    roster: Roster,
    what: Measurement,
    payloads: Mapping[str, Mapping[str, Adapter]],
    tick: Tick | None = None,
) -> Measured:
    """Ask each site of ``payloads``, in that order; one that fails is named and left out."""
    packer, rounds = Packer(), config.federation.rounds
    instructions = [
        Instruction(
            action=what.action,
            site=site,
            config=site_config(config),
            round=rounds,
            payloads=packer.pack(adapters),
            splits=what.splits,
            run=what.place.run,
            progress_file=what.place.progress_file,
            state_folder=what.place.state_folder,
        )
        for site, adapters in payloads.items()
    ]
    got = collect(grid, instructions, roster.nodes, what.timeout, tick)
    measured = Measured(
        replies=dict(got.replies),
        problems=dict(got.problems),
        bytes_up=sum(got.bytes_up.values()),
        bytes_down=sum(got.bytes_down.values()),
    )
    for site, reply in sorted(got.replies.items()):
        up, down = got.bytes_up.get(site, 0), got.bytes_down[site]
        measured.rows += site_rows(reply, rounds, bytes_up=up, bytes_down=down)
        measured.training_seconds += reply.numbers.get("training_seconds", 0.0)
    for site, problem in sorted(got.problems.items()):
        warn(f"site {site}: no {what.action} metrics: {problem.reason}")
        measured.missing[site] = problem.reason
    return measured
