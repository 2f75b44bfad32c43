"""Stratified, seeded train/validation/test splits of one site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedapp.seeds import derive_seed

Counts = NDArray[np.int64]


def stratified_splits(
    labels: Sequence[int],
    *,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
    site: str,
) -> dict[str, list[int]]:
    """Deal the records of one site to the three splits, each label by its share.

    Every label present keeps at least one training record. With three records or more it is also
    in the other two splits, so that a rare label can be measured. A label with fewer records goes
    to training first.

    Parameters
    ----------
    labels : sequence of int, length n
    validation_fraction, test_fraction : float
        Shares of n, rounded half up, at least one record where n allows it.
    seed : int
        Seed of the run.
    site : str
        Name of the site; two sites draw independently.

    Returns
    -------
    dict of str to list of int
        Sorted indices for ``"train"``, ``"validation"`` and ``"test"``; a split of a very small
        site may be empty.
    """
    values = np.asarray(labels, dtype=np.int64)
    classes = np.unique(values)
    n_c: Counts = np.array([np.sum(values == c) for c in classes], dtype=np.int64)
    test_c = apportion(n_c, test_fraction, n_c - 1)
    validation_c = apportion(n_c, validation_fraction, n_c - 1 - test_c)
    rng = np.random.default_rng(derive_seed(seed, "split", site))
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for label, tests, validations in zip(classes, test_c, validation_c, strict=True):
        order = rng.permutation(np.flatnonzero(values == label))
        parts["test"] += order[:tests].tolist()
        parts["validation"] += order[tests : tests + validations].tolist()
        parts["train"] += order[tests + validations :].tolist()
    return {name: sorted(part) for name, part in parts.items()}


def apportion(n_c: Counts, fraction: float, capacity_c: Counts) -> Counts:
    """Share ``fraction`` of all records over the labels by the largest remainder.

    Parameters
    ----------
    n_c : array of int, shape (labels,)
        Records of each label.
    fraction : float
    capacity_c : array of int, shape (labels,)
        Most records that each label may give.

    Returns
    -------
    array of int, shape (labels,)
    """
    total = max(1, int(np.floor(fraction * n_c.sum() + 0.5)))
    ideal_c = fraction * n_c
    # The small number keeps 0.2 * 15 = 3.0000000000000004 and 2.9999... on the same side.
    least_c = np.where(n_c >= 3, 1, 0)
    given_c: Counts = np.maximum(np.floor(ideal_c + 1e-9).astype(np.int64), least_c)
    given_c = np.minimum(given_c, np.maximum(capacity_c, 0))
    for index in np.argsort(given_c - ideal_c, kind="stable"):
        if given_c.sum() < total and given_c[index] < capacity_c[index]:
            given_c[index] += 1
    return given_c


def subsample(labels: Sequence[int], most: int, *, seed: int, site: str) -> list[int]:
    """Return at most ``most`` sorted indices, each label by its share; 0 keeps all."""
    n = len(labels)
    if most == 0 or n <= most:
        return list(range(n))
    values = np.asarray(labels, dtype=np.int64)
    classes = np.unique(values)
    n_c: Counts = np.array([np.sum(values == c) for c in classes], dtype=np.int64)
    kept_c = apportion(n_c, most / n, n_c)
    rng = np.random.default_rng(derive_seed(seed, "subsample", site))
    kept: list[int] = []
    for label, count in zip(classes, kept_c, strict=True):
        kept += rng.permutation(np.flatnonzero(values == label))[:count].tolist()
    return sorted(kept)
