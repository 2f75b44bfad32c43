"""From a data source to the checked, split records of every site."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from client_app.data.checks import check_disjoint, check_site, find_duplicates
from client_app.data.labels import label_index, resolve_label_map
from client_app.data.partition import deal
from client_app.data.site_data import Record, SiteData
from client_app.data.sources import read_table
from client_app.data.splits import stratified_splits, subsample
from client_app.data.table import Table
from fedapp.config import RunConfig
from fedapp.errors import DataError


@dataclass(frozen=True)
class _Dealt:
    table: Table
    label_map: list[str]
    labels: list[int]
    sites: dict[str, list[int]]
    duplicates: dict[int, int]


def load_sites(config: RunConfig) -> dict[str, SiteData]:
    """Load every site of the source, in the order of their names.

    Raises
    ------
    DataError
        If the source cannot be read, or any site cannot be used; see `load_site`.
    ConfigError
        For an unknown embedded source.
    """
    dealt = _deal(config)
    return {site: _build(dealt, site, config) for site in dealt.sites}


def load_site(config: RunConfig, site: str) -> SiteData:
    """Load one site; what is wrong with the records of another one does not matter.

    Raises
    ------
    DataError
        If the source cannot be read, or the site has no records, too few for its splits, records
        of one label only, or a record in common with another site.
    """
    return _build(_deal(config), site, config)


def site_names(config: RunConfig) -> list[str]:
    """Names of the sites in the source, sorted."""
    return list(_deal(config).sites)


def _deal(config: RunConfig) -> _Dealt:
    table = read_table(config.data)
    if not len(table):
        raise DataError(f"{table.name} holds no records: expected at least 1; check data.source")
    label_map = resolve_label_map(table, config.data.labels)
    index = {label: number for number, label in enumerate(label_map)}
    labels = [
        index[label]
        if label in index
        else label_index(label, label_map, table, row + 1, table.sites[row] if table.sites else "")
        for row, label in enumerate(table.labels)
    ]
    duplicates = find_duplicates(table.texts)
    if duplicates and config.data.duplicates == "refuse":
        row, first = next(iter(duplicates.items()))
        raise DataError(
            f"{table.name}: row {row + 1} repeats row {first + 1}, and {len(duplicates)} rows in "
            "all repeat an earlier one: expected every record once; remove them or set "
            "data.duplicates to drop",
            site=table.sites[row] if table.sites else None,
        )
    kept = [row for row in range(len(table)) if row not in duplicates]
    sites = dict(sorted(deal(table, labels, kept, config.data, config.seed).items()))
    check_disjoint({site: [table.texts[i] for i in rows] for site, rows in sites.items()}, "sites")
    return _Dealt(table, label_map, labels, sites, duplicates)


def _build(dealt: _Dealt, site: str, config: RunConfig) -> SiteData:
    rows = dealt.sites.get(site)
    if rows is None:
        near = difflib.get_close_matches(site, dealt.sites, n=1, cutoff=0.0)
        raise DataError(
            f"{dealt.table.name} has no records of this site: expected one of its "
            f"{len(dealt.sites)} sites, the nearest is '{near[0]}'; check the site's name",
            site=site,
        )
    notes, dropped = _notes(dealt, site, config)
    if not rows:
        raise DataError(
            f"zero examples are left in {dealt.table.name}: expected at least 1, but all {dropped} "
            "of its records repeat records of other sites; remove the copies",
            site=site,
        )
    data = config.data
    kept = subsample(
        [dealt.labels[i] for i in rows], data.max_examples, seed=config.seed, site=site
    )
    rows = [rows[i] for i in kept]
    parts = stratified_splits(
        [dealt.labels[i] for i in rows],
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        seed=config.seed,
        site=site,
    )
    splits = {
        name: [Record(text=dealt.table.texts[rows[i]], label=dealt.labels[rows[i]]) for i in part]
        for name, part in parts.items()
    }
    loaded = SiteData(site, list(dealt.label_map), splits, notes)
    check_site(loaded, one_class=data.one_class)
    return loaded


def _notes(dealt: _Dealt, site: str, config: RunConfig) -> tuple[list[str], int]:
    """Return the remarks on a site and how many of its records were dropped as repeated."""
    notes = list(dealt.table.notes)
    dropped = list(dealt.duplicates)
    where = "before the records were dealt to sites"
    if config.data.partition == "natural" and dealt.table.sites is not None:
        dropped = [row for row in dropped if dealt.table.sites[row] == site]
        where = "at this site"
    conflicts = sum(dealt.labels[r] != dealt.labels[dealt.duplicates[r]] for r in dropped)
    if dropped:
        noun = "record that repeats" if len(dropped) == 1 else "records that repeat"
        note = f"{len(dropped)} {noun} an earlier one dropped {where}"
        notes.append(note + (f", {conflicts} with another label" if conflicts else ""))
    return notes, len(dropped)
