"""From a data source to the checked, split records of every site."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from client_app.data.checks import check_disjoint, check_held_out, check_site, find_duplicates
from client_app.data.labels import not_in_map, resolve_class_names, resolve_label_map
from client_app.data.partition import deal
from client_app.data.schemas import schema_class
from client_app.data.site_data import Record, SiteData
from client_app.data.sources import read_table
from client_app.data.splits import stratified_splits, subsample
from client_app.data.table import Table
from fedapp.config import RunConfig
from fedapp.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Dealt:
    table: Table
    label_map: list[str]
    labelled: bool
    strata: list[int]
    sites: dict[str, list[int]]
    duplicates: dict[int, int]
    bad: dict[str, DataError]  # sites whose labels cannot be used


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


def load_usable_sites(config: RunConfig) -> dict[str, SiteData | DataError]:
    """Load every site, or what is wrong with it; the source is read and dealt once.

    Raises
    ------
    DataError, ConfigError
        If no site can be used, because the source cannot be read or dealt.
    """
    dealt = _deal(config)
    return {site: _build_or_error(dealt, site, config) for site in dealt.sites}


def load_site(config: RunConfig, site: str, *, find_labels: bool = True) -> SiteData:
    """Load one site; what is wrong with the records of another one does not matter.

    Parameters
    ----------
    config : RunConfig
    site : str
    find_labels : bool
        Whether the label map may be found in the records, see `resolve_label_map`.

    Raises
    ------
    DataError
        If the source cannot be read, or the site has no records, too few for its splits, records
        of one label only, or a record in common with another site. It is always of ``site``: what
        a row has in the site column may be anything if the wrong column is named.
    ConfigError
        If the labels would have to be found and may not be.
    """
    try:
        return _build(_deal(config, find_labels), site, config)
    except DataError as error:
        raise DataError(error.message, site=site) from None


def _deal(config: RunConfig, find_labels: bool = True) -> _Dealt:
    table = read_table(config)
    if not len(table):
        raise DataError(f"{table.name} holds no records: expected at least 1; check data.source")
    check_held_out(table, config.federation.held_out)
    schema = schema_class(config.model.task)
    label_map: list[str] = []
    bad: dict[str, DataError] = {}
    if schema.labelled:
        label_map, strata = _labels(table, config, find_labels, bad)
    else:
        strata = _numbers(table)
        if schema.names_classes:
            label_map = resolve_class_names(table, config.data.labels)
    for row, sentence in schema.check(table.examples, label_map):
        site = _owner(table, row, config)
        _blame(DataError(f"{table.name}, row {row + 1}: {sentence}", site=site), bad)
    duplicates = find_duplicates(table.contents)
    if duplicates and config.data.duplicates == "refuse":
        row, first = next(iter(duplicates.items()))
        raise DataError(
            f"{table.name}: row {row + 1} repeats row {first + 1}, and {len(duplicates)} rows in "
            "all repeat an earlier one: expected every record once; remove them or set "
            "data.duplicates to drop",
            site=table.sites[row] if table.sites else None,
        )
    kept = [row for row in range(len(table)) if row not in duplicates]
    sites = dict(sorted(deal(table, strata, kept, config.data, config.seed).items()))
    contents = table.contents
    check_disjoint({site: [contents[i] for i in rows] for site, rows in sites.items()}, "sites")
    return _Dealt(table, label_map, schema.labelled, strata, sites, duplicates, bad)


def _labels(
    table: Table, config: RunConfig, may_find: bool, bad: dict[str, DataError]
) -> tuple[list[str], list[int]]:
    """Return the label map and every record's index into it.

    A label outside the map is the problem of its natural site alone, and put in ``bad``.
    """
    label_map = resolve_label_map(table, config.data.labels, may_find=may_find)
    index = {label: number for number, label in enumerate(label_map)}
    for row, label in enumerate(table.strata):
        if label not in index:
            _blame(not_in_map(label, table, row + 1, _owner(table, row, config)), bad)
    return label_map, [index.get(label, -1) for label in table.strata]


def _owner(table: Table, row: int, config: RunConfig) -> str | None:
    """The site that a row goes to, where its source decides that."""
    return table.sites[row] if table.sites and config.data.partition == "natural" else None


def _blame(error: DataError, bad: dict[str, DataError]) -> None:
    """Keep the first error of a site for itself; one that may concern any site ends the reading."""
    if error.site is None:
        raise error
    bad.setdefault(error.site, error)


def _numbers(table: Table) -> list[int]:
    """Number the strata of a task without labels."""
    index = {stratum: number for number, stratum in enumerate(sorted(set(table.strata)))}
    return [index[stratum] for stratum in table.strata]


def _build_or_error(dealt: _Dealt, site: str, config: RunConfig) -> SiteData | DataError:
    try:
        return _build(dealt, site, config)
    except DataError as error:
        return error


def _build(dealt: _Dealt, site: str, config: RunConfig) -> SiteData:
    rows = dealt.sites.get(site)
    if rows is None:
        raise DataError(
            f"{dealt.table.name} has no records of this site, only of {len(dealt.sites)} others; "
            "check the site's name, data.site-column and data.partition",
            site=site,
        )
    if site in dealt.bad:
        raise dealt.bad[site]
    notes, dropped = _notes(dealt, site, config)
    if not rows:
        raise DataError(
            f"zero examples are left in {dealt.table.name}: expected at least 1, but all {dropped} "
            "of its records repeat records of other sites; remove the copies",
            site=site,
        )
    data = config.data
    kept = subsample(
        [dealt.strata[i] for i in rows], data.max_examples, seed=config.seed, site=site
    )
    rows = [rows[i] for i in kept]
    parts = stratified_splits(
        [dealt.strata[i] for i in rows],
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        seed=config.seed,
        site=site,
    )
    splits = {name: [_record(dealt, rows[i]) for i in part] for name, part in parts.items()}
    loaded = SiteData(site, list(dealt.label_map), splits, notes, config.model.task)
    check_site(loaded, one_class=data.one_class)
    return loaded


def _record(dealt: _Dealt, row: int) -> Record:
    label = {"label": dealt.strata[row]} if dealt.labelled else {}
    return {**dealt.table.examples[row].fields, **label}


def _notes(dealt: _Dealt, site: str, config: RunConfig) -> tuple[list[str], int]:
    """Return the remarks on a site and how many of its records were dropped as repeated."""
    notes = list(dealt.table.notes)
    dropped = list(dealt.duplicates)
    where = "before the records were dealt to sites"
    if config.data.partition == "natural" and dealt.table.sites is not None:
        dropped = [row for row in dropped if dealt.table.sites[row] == site]
        where = "at this site"
    conflicts = sum(dealt.strata[r] != dealt.strata[dealt.duplicates[r]] for r in dropped)
    if conflicts and dealt.labelled:  # a number of labels, so it stays in the site's own log
        log.warning("site %s: %d of the dropped records have another label", site, conflicts)
    if dropped:
        noun = "record that repeats" if len(dropped) == 1 else "records that repeat"
        notes.append(f"{len(dropped)} {noun} an earlier one dropped {where}")
    return notes, len(dropped)
