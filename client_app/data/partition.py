"""Deal records to sites with flwr-datasets' partitioners."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import DataError
from fedapp.seeds import derive_seed

# Fewest records a Dirichlet site may get: with the default fractions every split has a record.
SMALLEST_SITE = 5


def deal(
    table: Table, strata: Sequence[int], kept: Sequence[int], data: DataSection, seed: int
) -> dict[str, list[int]]:
    """Return the indices of every site's records, sorted within a site.

    Parameters
    ----------
    table : Table
    strata : sequence of int
        Number of every record's label or other stratum, by which ``dirichlet`` deals.
    kept : sequence of int
        Indices of the records to deal.
    data : DataSection
        ``partition``, ``sites``, ``dirichlet_alpha``.
    seed : int
        Seed of the run; ``natural`` and ``stratum`` do not draw.

    Raises
    ------
    DataError
        If the source knows no natural sites, or no strata, or there are too few records for so many
        sites.
    """
    if data.partition == "natural":
        return _natural(table, kept)
    if data.partition == "stratum":
        return _by_stratum(table, kept)
    if data.partition == "groups":
        return _groups(table, kept, data.sites, derive_seed(seed, "partition", data.partition))
    if data.sites > len(kept):
        raise DataError(
            f"{table.name}: {len(kept)} records cannot be dealt to {data.sites} sites; "
            "lower data.sites"
        )
    draw = derive_seed(seed, "partition", data.partition)
    parts = (
        _iid(kept, data.sites, draw)
        if data.partition == "iid"
        else _dirichlet(table, strata, kept, data, draw)
    )
    return _named(parts)


def _natural(table: Table, kept: Sequence[int]) -> dict[str, list[int]]:
    from datasets import Dataset
    from flwr_datasets.partitioner import NaturalIdPartitioner

    if table.sites is None:
        raise DataError(
            f"{table.name} has no sites of its own; set data.partition to dirichlet or iid"
        )
    # A site whose records were all dropped must be reported, not forgotten.
    sites: dict[str, list[int]] = {name: [] for name in sorted(set(table.sites))}
    if not kept:
        return sites
    partitioner = NaturalIdPartitioner(partition_by="site")
    partitioner.dataset = Dataset.from_dict(
        {"index": list(kept), "site": [table.sites[i] for i in kept]}
    )
    with contextlib.redirect_stderr(io.StringIO()):  # it draws a progress bar
        for number in range(partitioner.num_partitions):
            part = partitioner.load_partition(number)
            sites[partitioner.partition_id_to_natural_id[number]] = sorted(part["index"])
    return sites


def _groups(table: Table, kept: Sequence[int], sites: int, seed: int) -> dict[str, list[int]]:
    """Deal whole natural sites, such as writers, to ``sites`` groups of as many each."""
    members = _natural(table, kept)
    if sites > len(members):
        raise DataError(
            f"{table.name}: {len(members)} sites of its own cannot be dealt to {sites} groups; "
            "lower data.sites"
        )
    order = np.random.default_rng(seed).permutation(sorted(members)).tolist()
    return _named(
        [row for name in group for row in members[name]] for group in np.array_split(order, sites)
    )


def _named(parts: Iterable[Sequence[int]]) -> dict[str, list[int]]:
    dealt = [sorted(part) for part in parts]
    width = len(str(len(dealt)))
    return {f"site-{i + 1:0{width}d}": part for i, part in enumerate(dealt)}


def _by_stratum(table: Table, kept: Sequence[int]) -> dict[str, list[int]]:
    """Give every stratum a site of its own, of its name: sites that have no task in common."""
    sites: dict[str, list[int]] = {}
    for row in kept:
        sites.setdefault(table.strata[row], []).append(row)
    if "" in sites:
        raise DataError(
            f"{table.name} has no strata to make sites of; name its column of tasks in "
            "data.stratum-column, or set data.partition to natural, dirichlet or iid"
        )
    return sites


def _iid(kept: Sequence[int], sites: int, seed: int) -> list[list[int]]:
    from datasets import Dataset
    from flwr_datasets.partitioner import IidPartitioner

    # The partitioner cuts contiguous pieces, so the order must be random first.
    shuffled = np.random.default_rng(seed).permutation(np.asarray(kept)).tolist()
    partitioner = IidPartitioner(num_partitions=sites)
    partitioner.dataset = Dataset.from_dict({"index": shuffled})
    return [list(partitioner.load_partition(number)["index"]) for number in range(sites)]


def _dirichlet(
    table: Table, strata: Sequence[int], kept: Sequence[int], data: DataSection, seed: int
) -> list[list[int]]:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=data.sites,
        partition_by="stratum",
        alpha=data.dirichlet_alpha,
        min_partition_size=SMALLEST_SITE,
        self_balancing=False,
        seed=seed,
    )
    partitioner.dataset = Dataset.from_dict(
        {"index": list(kept), "stratum": [strata[i] for i in kept]}
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one warning a redraw
            return [
                list(partitioner.load_partition(number)["index"]) for number in range(data.sites)
            ]
    except ValueError:
        raise DataError(
            f"{table.name}: dealing {len(kept)} records to {data.sites} sites with "
            f"data.dirichlet-alpha {data.dirichlet_alpha:g} left a site with fewer than "
            f"{SMALLEST_SITE} records in every draw; raise data.dirichlet-alpha or lower data.sites"
        ) from None
