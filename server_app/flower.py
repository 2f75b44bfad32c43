"""Flower's strategy interface on top of ours, for those who call a strategy the Flower way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, MetricRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.superlink.grid import InMemoryGrid

from fedapp.adapter import Adapter
from fedapp.errors import FedappError, MergeRefused, WireError
from fedapp.exchange import Action, Instruction, Reply
from fedapp.reported import check_reported
from fedapp.results import RunFolder
from fedapp.wire import PayloadCache, content_to_reply
from server_app.basis_phase import gather_bases
from server_app.collect import error_text, failure_text, name_node, to_message
from server_app.handshake import shake_hands
from server_app.log import warn
from server_app.packer import NOWHERE, Packer, site_config
from server_app.roster import Roster
from server_app.sampling import sample
from server_app.training_round import merge_usable, train_instructions, validate
from server_app.updates import Update

if TYPE_CHECKING:
    from server_app.strategies.base import BaseStrategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def to_arrays(adapter: Adapter) -> ArrayRecord:
    """Return an adapter as Flower arrays by name."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in adapter.arrays()})


def from_arrays(arrays: ArrayRecord, template: Adapter) -> Adapter:
    """Return Flower arrays by name as an adapter with the layout of ``template``.

    Raises
    ------
    FedappError
        If names or shapes differ.
    """
    expected = dict(template.arrays())
    if set(arrays) != set(expected):
        raise FedappError(
            f"the arrays must be those of the adapter ({len(expected)}), got {len(arrays)} others"
        )
    values = {name: array.numpy() for name, array in arrays.items()}
    for name, value in values.items():
        if value.shape != expected[name].shape:
            raise FedappError(
                f"array '{name}' must have shape {expected[name].shape}, got {value.shape}"
            )
    return template.map(lambda name, _: values[name].astype(np.float32, copy=False))


def configure_train(
    strategy: BaseStrategy, round: int, arrays: ArrayRecord, grid: Grid
) -> Iterable[Message]:
    """See ``Strategy.configure_train``."""
    roster = _roster(strategy, grid)
    if arrays:
        strategy.adapter = from_arrays(arrays, strategy.adapter)
    sites = roster.largest_first(sample(roster.sites, strategy.config, round))
    packer = Packer()
    evaluated: Collection[str] = ()
    if strategy.basis_layout() is not None:
        phase = gather_bases(grid, strategy, roster, round, sites, packer, NOWHERE)
        evaluated = phase.metrics
    instructions = train_instructions(strategy, round, sites, packer, evaluated=evaluated)
    return _messages(instructions, strategy, roster)


def configure_evaluate(
    strategy: BaseStrategy, round: int, arrays: ArrayRecord, grid: Grid
) -> Iterable[Message]:
    """See ``Strategy.configure_evaluate``."""
    roster, packer = _roster(strategy, grid), Packer()
    if arrays:
        strategy.adapter = from_arrays(arrays, strategy.adapter)
    instructions = [
        Instruction(
            action=Action.EVALUATE,
            site=site,
            config=site_config(strategy.config),
            round=round,
            payloads=packer.pack(strategy.evaluation_payloads(site)),
            splits=("test",),
        )
        for site in roster.sites
    ]
    return _messages(instructions, strategy, roster)


def aggregate_train(
    strategy: BaseStrategy, round: int, replies: Iterable[Message]
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """See ``Strategy.aggregate_train``; a reply that cannot be used is named and left out."""
    replied: dict[str, Reply] = {}
    updates: dict[str, Update] = {}
    for reply in _usable(strategy, Action.TRAIN, replies):
        roster = strategy.roster
        announced = roster.training_records(reply.site) if roster is not None else None
        try:
            updates[reply.site] = validate(strategy, round, reply, announced)
        except FedappError as error:
            warn(str(error))
        else:
            replied[reply.site] = reply
    try:
        aggregate = merge_usable(strategy, round, updates, {}, needed=1)
    except MergeRefused as error:
        warn(str(error))
        return None, None
    if aggregate is None:
        return None, None
    metrics = _mean_metrics([replied[site] for site in sorted(updates)], "personal/validation")
    for name, value in aggregate.diagnostics.items():
        metrics[name] = float(value)
    return to_arrays(aggregate.adapter), metrics


def aggregate_evaluate(
    strategy: BaseStrategy, round: int, replies: Iterable[Message]
) -> MetricRecord | None:
    """See ``Strategy.aggregate_evaluate``."""
    return _mean_metrics(list(_usable(strategy, Action.EVALUATE, replies)), "received/test") or None


def start(
    strategy: BaseStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    timeout: float,
    evaluate_fn: EvaluateFn | None,
) -> Result:
    """See ``BaseStrategy.start``."""
    from server_app.rounds import RoundLoop

    result = Result()

    def on_round(round: int, adapter: Adapter) -> None:
        arrays = to_arrays(adapter)
        result.arrays = arrays
        metrics = evaluate_fn(round, arrays) if evaluate_fn else None
        if metrics is not None:
            result.evaluate_metrics_serverapp[round] = metrics

    strategy.config = strategy.config.with_changes(
        {"federation.rounds": num_rounds, "federation.round-timeout": timeout}
    )
    folder = RunFolder.create(strategy.config)
    loop = RoundLoop(
        grid,
        strategy,
        folder,
        simulated=isinstance(grid, InMemoryGrid),
        replace_initial=(lambda own: from_arrays(initial_arrays, own)) if initial_arrays else None,
        on_round=on_round,
    )
    loop.run()
    for row in folder.read_metrics():
        if row["site"] is None:
            kept: dict[str, MetricRecordValues] = {
                k: v for k, v in row.items() if isinstance(v, int | float) and k != "round"
            }
            result.train_metrics_clientapp[row["round"]] = MetricRecord(kept)
    return result


def _roster(strategy: BaseStrategy, grid: Grid) -> Roster:
    if strategy.roster is None:
        strategy.roster = shake_hands(grid, strategy.config)
    return strategy.roster


def _messages(
    instructions: Iterable[Instruction], strategy: BaseStrategy, roster: Roster
) -> list[Message]:
    cache, timeout = PayloadCache(), strategy.config.federation.round_timeout
    return [to_message(i, roster.nodes[i.site], timeout, cache) for i in instructions]


def _usable(strategy: BaseStrategy, action: Action, replies: Iterable[Message]) -> Iterator[Reply]:
    """Yield the replies that can be used, one per site; the others are named and left out."""
    nodes = strategy.roster.nodes if strategy.roster is not None else None
    seen: set[str] = set()
    for message in replies:
        try:
            reply = check_reported(_read(message, action, nodes), strategy.config.model.task)
            if reply.site in seen:
                raise WireError("a second reply is ignored", site=reply.site)
        except FedappError as error:
            warn(f"{name_node(message.metadata.src_node_id, nodes)}: {error}")
        else:
            seen.add(reply.site)
            yield reply


def _read(message: Message, action: Action, nodes: Mapping[str, int] | None) -> Reply:
    if message.has_error():
        raise WireError(error_text(message))
    reply = content_to_reply(message.content)
    sender = message.metadata.src_node_id
    if nodes is not None and nodes.get(reply.site) != sender:
        raise WireError(f"it answers for site '{reply.site}', which is not there")
    if reply.action != action:
        raise WireError(f"the reply is for {reply.action}, expected {action}", site=reply.site)
    if reply.failure is not None:
        raise FedappError(failure_text(reply), site=reply.site, round=reply.round)
    return reply


def _mean_metrics(replies: list[Reply], key: str) -> MetricRecord:
    """Mean over the sites of every metric that all of them have."""
    tables = [reply.metrics[key] for reply in replies if key in reply.metrics]
    names = set.intersection(*(set(table) for table in tables)) if tables else set()
    return MetricRecord({n: fmean(table[n] for table in tables) for n in sorted(names)})
