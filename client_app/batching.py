"""Which records go into which batch of an epoch: seeded, and grouped by length to save padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Records are sorted within random groups of this many batches: long enough that neighbours have
# nearly the same length, short enough that batches of a large site differ from epoch to epoch.
GROUP_BATCHES = 32


def batches(
    items: Sequence[Mapping[str, Any]], batch_size: int, seed: int, grouping: bool = True
) -> list[list[int]]:
    """Deal the indices of ``items`` to batches; every index occurs exactly once.

    Parameters
    ----------
    items : sequence of mapping
        Prepared records with ``"length"`` (tokens).
    batch_size : int
        Records per batch; only one batch may be smaller.
    seed : int
        Seed of this epoch. Equal arguments give equal batches on every machine.
    grouping : bool
        Whether to put records of similar length together.

    Returns
    -------
    list of list of int
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(items))
    if not grouping:
        return _cut(order.tolist(), batch_size)
    lengths = np.array([item["length"] for item in items], dtype=np.int64)
    dealt: list[list[int]] = []
    group = batch_size * GROUP_BATCHES
    for start in range(0, len(order), group):
        part = order[start : start + group]
        # A stable sort keeps the random order among records of one length.
        dealt += _cut(part[np.argsort(lengths[part], kind="stable")].tolist(), batch_size)
    return [dealt[i] for i in rng.permutation(len(dealt))]


def ordered_batches(items: Sequence[Mapping[str, Any]], batch_size: int) -> list[list[int]]:
    """Deal the indices to batches from longest to shortest, for evaluation.

    The longest come first, so that too little memory shows at once.
    """
    lengths = np.array([item["length"] for item in items], dtype=np.int64)
    return _cut(np.argsort(-lengths, kind="stable").tolist(), batch_size)


def _cut(order: list[int], size: int) -> list[list[int]]:
    return [order[i : i + size] for i in range(0, len(order), size)]
