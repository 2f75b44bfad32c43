"""Mixing although a model that the rule lets in would spoil the mix: that one is refused alone.

Gates look at scores. A finite model can pass them all (where they are off, or blind to scale) and
still be so large that no usable model comes of a mix with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fedapp.adapter import Adapter
from fedapp.errors import MergeRefused, TrainingError
from fedapp.peer_rules.base import Context, Mixed, Neighbour, PeerRule, Verdict
from fedapp.peer_rules.vectors import as_vectors
from fedapp.robust.vectors import distances
from fedapp.validation import first_too_large

T = TypeVar("T")

UNMIXABLE = "unmixable"
"""What the ledger says of a model that would have spoiled the mix."""
_SPOILT = (MergeRefused, TrainingError, np.linalg.LinAlgError)


def mix_usable(
    rule: PeerRule,
    own: Adapter,
    neighbours: Sequence[Neighbour],
    context: Context,
    judge: Callable[[Adapter], T],
) -> tuple[Mixed, T]:
    """Return what the rule makes of the neighbours, without those that spoil it.

    A mix is spoilt if it is not finite, beyond what other sites would take
    (`fedapp.validation.LARGEST_NUMBER`), or if the judge says so. Only then are the
    neighbours taken one by one, the nearest first, and each whose addition spoils the mix is
    refused. So are colluders who spoil it together alone, but for as many as do no harm.

    Parameters
    ----------
    rule, own, neighbours, context
        See `fedapp.peer_rules.base.PeerRule`.
    judge : callable
        Evaluates a model; raises TrainingError if its outputs are not finite, or its loss is
        such as nobody would take.

    Returns
    -------
    mixed : Mixed
        The own object itself is its model if nobody is left.
    judged : T
        What ``judge`` says of that model.

    Raises
    ------
    TrainingError
        If the own model's outputs are not finite.
    """
    first: Mixed | None = None
    try:
        first = rule.mix(own, neighbours, context)
        return first, _judged(first.model, own, judge)
    except _SPOILT:
        if first is not None and first.model is own:
            raise
    view, loss = _remembering(context.view), _remembering(context.loss)
    context = replace(context, view=view, loss=loss)
    mixed, judged = Mixed(own, 1.0, (), _without_mix(first)), judge(own)
    scores, kept = _scores(first), list[Neighbour]()
    for one in _nearest_first(own, neighbours):
        tried = sorted([*kept, one], key=lambda each: each.name)
        try:
            more = rule.mix(own, tried, context)
            scores = {**_scores(more), **scores}
            if not kept:  # should nobody be left, still what the rule found out
                mixed = replace(mixed, numbers={**_without_mix(more), **mixed.numbers})
            if more.model.digest() != mixed.model.digest():
                judged = _judged(more.model, own, judge)
        except _SPOILT:
            continue
        mixed, kept = more, tried
    left = {verdict.peer: verdict for verdict in mixed.verdicts}
    verdicts = (
        left.get(one.name)
        or Verdict(one.name, False, refused_by=(UNMIXABLE,), scores=scores.get(one.name, {}))
        for one in neighbours
    )
    return replace(mixed, verdicts=tuple(verdicts)), judged


def _scores(mixed: Mixed | None) -> dict[str, Mapping[str, float | None]]:
    return {verdict.peer: verdict.scores for verdict in (mixed.verdicts if mixed else ())}


def _without_mix(asked: Mixed | None) -> dict[str, float]:
    """Return a rule's numbers for the case that the own model stays: nothing is cut from it."""
    numbers = dict(asked.numbers) if asked else {}
    return {**numbers, "mixing_error": 0.0} if "mixing_error" in numbers else numbers


def _judged(model: Adapter, own: Adapter, judge: Callable[[Adapter], T]) -> T:
    finding = first_too_large(model)
    if finding is not None and first_too_large(own) is None:
        raise MergeRefused(f"after the mix {finding}")
    return judge(model)


def _nearest_first(own: Adapter, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    far_k = distances(*as_vectors(own, neighbours))
    return [neighbours[index] for index in np.argsort(far_k, kind="stable")]


def _remembering(look: Callable[[Adapter], T]) -> Callable[[Adapter], T]:
    """Return what looks at every model once, though the rule is asked many times."""
    known: dict[str, T] = {}

    def remembered(model: Adapter) -> T:
        key = model.digest()
        if key not in known:
            known[key] = look(model)
        return known[key]

    return remembered
