"""What a site's policy says to a request, and what it lets out of a reply (pure)."""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NoReturn

import numpy as np

import fedapp
from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.config_policy import PolicySection
from fedapp.errors import PolicyRefused
from fedapp.exchange import Metrics, Reply
from fedapp.increments import difference
from fedapp.opening_hours import is_open
from fedapp.tasks import TASKS
from fedapp.text import clean

RULES: dict[str, str] = {
    "app-versions": "the version of the app that asks",
    "coordinators": "the coordinator that asks",
    "hours": "the time of the day and week",
    "methods": "the method",
    "algorithms": "the algorithm of the federation",
    "base-models": "the base model",
    "max-rank": "the rank of the adapter",
    "max-rounds": "the number of rounds",
    "max-local-steps": "the number of optimiser steps in a round",
}
"""The rules by which a request can be refused, and what each looks at."""

COSTS = frozenset({"steps", "seconds", "training_seconds", "evaluation_seconds", "state_round"})
"""Numbers beside the metrics that say nothing of records; ``own_steps`` is counted among them."""


@dataclass(frozen=True)
class Request:
    """Who asks, for what, and when.

    Attributes
    ----------
    config : RunConfig
        As the coordinator sent it.
    round : int
    app_version, coordinator : str
        As the site's own SuperNode says; empty if it does not.
    now : datetime
        With a time zone.
    begun : bool
        Whether this is a repetition of what began before, which ends at any hour.
    """

    config: RunConfig
    round: int
    app_version: str
    coordinator: str
    now: datetime
    begun: bool = False


def check_request(policy: PolicySection, request: Request) -> None:
    """Check all rules but the number of steps.

    Raises
    ------
    PolicyRefused
        With the name of the first rule that is broken.
    """
    config = request.config
    _check_member(
        "app-versions", request.app_version, policy.app_versions or (fedapp.__version__,),
        "install that version at the coordinator, or allow the other in site.toml",
    )  # fmt: skip
    _check_member("coordinators", request.coordinator, policy.coordinators, "ask this site")
    spans = policy.spans()
    now = request.now.astimezone(zoneinfo.ZoneInfo(policy.time_zone) if policy.time_zone else None)
    if spans and not request.begun and not is_open(spans, now):
        _refuse(
            "hours",
            f"work begins only {', '.join(policy.hours)}, and it is {now:%a %H:%M}; ask again then",
        )
    _check_member("methods", config.method, policy.methods, "choose one of these")
    _check_member(
        "algorithms", config.federation.algorithm, policy.algorithms, "choose one of these"
    )
    _check_member("base-models", config.model.source, policy.base_models, "choose one of these")
    _check_most("max-rank", "a rank", config.lora.rank, policy.max_rank, "lora.rank")
    rounds = max(config.federation.rounds, request.round)
    _check_most("max-rounds", "a number of rounds", rounds, policy.max_rounds, "federation.rounds")


def check_steps(policy: PolicySection, steps: int) -> None:
    """Check the number of optimiser steps that a round would take; raises PolicyRefused."""
    if policy.max_local_steps:
        _check_most(
            "max-local-steps", "a number of steps", steps, policy.max_local_steps, "train.max-steps"
        )


def withhold(
    policy: PolicySection, reply: Reply, task: str, records: int
) -> tuple[Reply, list[str]]:
    """Return the reply without what must not leave, and the names of what was withheld.

    A table of metrics leaves if it says that it is of ``min-records`` records or more; numbers
    about the training leave if there are so many training records, costs always. Without
    ``per-class-metrics`` only the metrics leave that `fedapp.tasks` names, which are of all
    classes together.

    Parameters
    ----------
    policy : PolicySection
    reply : Reply
    task : str
        Value of ``model.task``.
    records : int
        Training records of the site.
    """
    overall = TASKS[task].reported
    metrics: dict[str, Metrics] = {}
    withheld: list[str] = []
    for table, values in reply.metrics.items():
        if policy.min_records and not values.get("examples", 0) >= policy.min_records:
            withheld.append(table)
            continue
        kept = {
            name: value
            for name, value in values.items()
            if policy.per_class_metrics or name in overall
        }
        withheld += [f"{table}/{name}" for name in values if name not in kept]
        metrics[table] = kept
    numbers = dict(reply.numbers)
    if records < policy.min_records:
        numbers = {n: v for n, v in numbers.items() if n in COSTS or n == "own_steps"}
        withheld += sorted(set(reply.numbers) - set(numbers))
    return replace(reply, metrics=metrics, numbers=numbers), withheld


def clip_updates(
    payloads: Mapping[str, Adapter], received: Mapping[str, Adapter], norm: float
) -> tuple[dict[str, Adapter], float]:
    """Return what is sent with ``||sent - received|| <= norm``, and the smallest factor taken.

    Every payload by itself, over all its numbers; one that was not received under its name and
    layout is measured from zero. ``norm`` 0 leaves everything as it is.

    Parameters
    ----------
    payloads, received : mapping of str to Adapter
    norm : float
    """
    if not norm:
        return dict(payloads), 1.0
    clipped: dict[str, Adapter] = {}
    smallest = 1.0
    for name, adapter in payloads.items():
        base = received.get(name)
        if base is None or base.layout_digest() != adapter.layout_digest():
            base = adapter.map(lambda _, array: np.zeros_like(array))
        change = difference(adapter, base)
        squares = (np.square(a, dtype=np.float64).sum() for _, a in change.arrays())
        length = float(np.sqrt(sum(squares)))
        if length > norm:
            factor = norm / length
            adapter = _moved(base, change, np.float32(factor))
            smallest = min(smallest, factor)
        clipped[name] = adapter
    return clipped, smallest


def _moved(base: Adapter, change: Adapter, factor: np.float32) -> Adapter:
    steps = dict(change.arrays())
    return base.map(lambda name, array: array + factor * steps[name])


def _check_member(rule: str, got: str, allowed: tuple[str, ...], advice: str) -> None:
    if allowed and got not in allowed:
        _refuse(rule, f"expected {' or '.join(map(clean, allowed))}, got '{clean(got)}'; {advice}")


def _check_most(rule: str, what: str, got: int, most: int, key: str) -> None:
    if got > most:
        _refuse(rule, f"expected {what} of at most {most}, got {got}; lower {key}")


def _refuse(rule: str, finding: str) -> NoReturn:
    raise PolicyRefused(f"refused by this site's rule '{rule}': {finding}", reason=rule)
