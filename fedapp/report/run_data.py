"""What a run folder tells, read leniently: a report is wanted most when a run went wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapp.config import settings
from fedapp.errors import FedappError
from fedapp.registry import METHODS
from fedapp.report import run_files
from fedapp.report.intervals import Interval, mean_interval, wilson
from fedapp.report.ledgers import Ledgers, read_ledgers
from fedapp.report.run_files import Metrics, Phases
from fedapp.results import RunFolder
from fedapp.tasks import TASKS, Metric, TaskInfo

PHASES = ("local-only", "received", "personal")
ENDINGS = ("failed", "stopped", "interrupted")  # without a summary
_LARGEST = 1e15
_BOOKKEEPING = {"name", "output-dir", "resume"}  # every run sets them; none changes a result


@dataclass(frozen=True)
class Row:
    """One setting as shown: key, value, its default, unit and description."""

    key: str
    value: str
    default: str | None  # None: this version does not know the key
    unit: str
    description: str

    @property
    def changed(self) -> bool:
        """Whether the value is not the default, of a setting that could change the result."""
        return (
            self.default is not None and self.value != self.default and self.key not in _BOOKKEEPING
        )


@dataclass(frozen=True)
class RunData:
    """A run as the report needs it.

    Attributes
    ----------
    folder : str
        Name of the run folder.
    settings : dict of str to scalar
        Dotted keys, from config.json.
    versions : dict of str to str
    summary : dict
        summary.json, empty while the run is unfinished.
    site_rows, federation_rows : list of dict
        Of metrics.jsonl, in order of round; of sites that attack on purpose there are none.
    sites : dict
        Site -> phase -> metrics on ``split``, for sites that train.
    held_out : dict
        The same for sites that never train.
    split : str
        ``"test"``, or ``"validation"`` if the run has not reached its test.
    descriptions : dict
        Site -> what it told in the handshake, if recorded.
    notes : list of str
        What was missing or unreadable.
    state : str
        ``RunFolder.state()``: "interrupted" if it was killed; "" if unknown.
    ledgers : dict
        Node -> its rounds, where hospitals exchanged updates directly.
    """

    folder: str
    settings: Mapping[str, Any]
    versions: Mapping[str, Any]
    summary: Mapping[str, Any]
    site_rows: list[dict[str, Any]]
    federation_rows: list[dict[str, Any]]
    sites: Mapping[str, Phases]
    held_out: Mapping[str, Phases]
    split: str
    descriptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    state: str = ""
    ledgers: Ledgers = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.summary.get("name") or self.settings.get("name") or self.folder)

    @property
    def method(self) -> str:
        """Federated method."""
        return str(self.summary.get("method") or self.settings.get("method") or "unknown method")

    @property
    def mixes(self) -> bool:
        """Whether hospitals mix their own models, so that there is no shared one."""
        return self.method in METHODS and bool(METHODS[self.method].peer_rule)

    @property
    def status(self) -> str:
        """``completed``, ``failed``, ``stopped``, ``interrupted``, or ``unfinished``."""
        if self.summary:
            return str(self.summary.get("status") or "completed")
        return self.state if self.state in ENDINGS else "unfinished"

    @property
    def rehearsal(self) -> str:
        """How the run says that sites attacked on purpose; empty if none did."""
        named = ", ".join(sorted(_names(self.settings.get("faults.sites"))))
        known = f"REHEARSAL OF ATTACKS: faulty on purpose: {named}" if named else ""
        return str(self.summary.get("rehearsal") or known)

    @property
    def task(self) -> TaskInfo:
        """What the run learned; a run that does not say it did classify."""
        return TASKS.get(str(self.settings.get("model.task")), TASKS["sequence-classification"])

    @property
    def whole(self) -> bool:
        """Whether every weight was trained."""
        return self.settings.get("model.trainable") == "all"

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics of a model in the tables, the headline first."""
        tokens = self.settings.get("train.generate-tokens")
        return self.task.columns(tokens if isinstance(tokens, int) else 0)

    @property
    def headline(self) -> str:
        """The metric by which models and hospitals are compared; a share, and more is better."""
        return self.columns[0]

    @property
    def metric(self) -> Metric:
        """What is known of the headline."""
        return self.task.metrics[self.headline]

    @property
    def rounds_done(self) -> int:
        """Last round with a record."""
        rows = self.federation_rows or self.site_rows
        return max((int(row["round"]) for row in rows), default=0)

    @property
    def rounds_planned(self) -> int | None:
        """Rounds asked for."""
        planned = self.settings.get("federation.rounds")
        return planned if isinstance(planned, int) else None

    @property
    def site_names(self) -> list[str]:
        """Every site that trains, sorted."""
        seen = {str(row["site"]) for row in self.site_rows} | set(self.sites)
        return sorted(seen - set(self.held_out))

    @property
    def classes(self) -> int | None:
        """Number of classes, if the sites told it."""
        labels = self.told("label_map")
        return len(labels) if isinstance(labels, list) and labels else None

    def told(self, key: str) -> Any:
        """What every site said alike in the handshake, or None."""
        return next((told[key] for told in self.descriptions.values() if key in told), None)

    def curve(self, site: str, phase: str, metric: str = "") -> list[tuple[int, float]]:
        """Validation values of a site over rounds, of the headline unless another is named."""
        points: dict[int, float] = {}
        for row in self.site_rows:
            if (
                row["site"] == site
                and row.get("phase") == phase
                and run_files.split_of(row) == "validation"
            ):
                value = number(row.get(metric or self.headline))
                if value is not None:
                    points[int(row["round"])] = value
        return sorted(points.items())

    def series(self, key: str) -> list[tuple[int, float]]:
        """One number of the federation rows over rounds."""
        points = ((int(row["round"]), number(row.get(key))) for row in self.federation_rows)
        return [(round_, value) for round_, value in points if value is not None]

    def phases(self) -> list[str]:
        """Phases that any site reached, in the order of the table."""
        return [p for p in PHASES if any(p in phases for phases in self.sites.values())]

    def mean(self, phase: str, metric: str) -> float | None:
        """Unweighted mean over the sites that have the metric; summary.json's, if it has one."""
        given = _nested(self.summary.get("mean"), phase, metric)
        if given is not None:
            return given
        values = self._values(phase, metric)
        return math.fsum(values) / len(values) if values else None

    def mean_interval(self, phase: str) -> Interval | None:
        """95 % interval of the mean headline, if that is a share of the examples."""
        if not self.metric.is_proportion:
            return None
        tested = [p[phase] for p in self.sites.values() if phase in p]
        pairs = [(number(m.get(self.headline)), number(m.get("examples"))) for m in tested]
        known = [(a, n) for a, n in pairs if a is not None and n is not None]
        return mean_interval([a for a, _ in known], [n for _, n in known])

    def worst(self, phase: str) -> tuple[str, Metrics] | None:
        """Site with the lowest headline (the first by name among equals) and its metrics."""
        ranked = [
            (value, site)
            for site, phases in self.sites.items()
            if (value := number(phases.get(phase, {}).get(self.headline))) is not None
        ]
        if not ranked:
            return None
        site = min(ranked)[1]
        return site, self.sites[site][phase]

    def interval(self, metrics: Metrics) -> Interval | None:
        """95 % Wilson interval of a site's headline, if that is a share of the examples."""
        value, count = number(metrics.get(self.headline)), number(metrics.get("examples"))
        if not self.metric.is_proportion or value is None or count is None:
            return None
        return wilson(value, count)

    def _values(self, phase: str, metric: str) -> list[float]:
        values = (number(p.get(phase, {}).get(metric)) for p in self.sites.values())
        return [value for value in values if value is not None]

    def concurrency(self) -> int:
        """How many sites worked side by side, from their seconds and those of the round."""
        busiest = 1.0
        for row in self.federation_rows:
            wall = number(row.get("seconds"))
            own = {
                site["site"]: number(site.get("seconds")) or 0.0
                for site in self.site_rows
                if site["round"] == row["round"]
                and site.get("phase") == "personal"
                and run_files.split_of(site) == "validation"
            }
            if wall:
                busiest = max(busiest, math.fsum(own.values()) / wall)
        return math.ceil(busiest - 0.05)

    def setting_rows(self) -> list[Row]:
        """Every setting of the run beside its default and its documentation."""
        documented = {setting.key: setting for setting in settings()}
        rows = []
        for key, value in self.settings.items():
            known = documented.get(key)
            rows.append(
                Row(
                    key=key,
                    value=show(value),
                    default=show(known.default) if known else None,
                    unit=known.unit if known else "",
                    description=known.description if known else "",
                )
            )
        return rows


def number(value: Any) -> float | None:
    """A float that can be drawn, or None for anything else (null, NaN, text, absurd sizes)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LARGEST <= value <= _LARGEST else None


def show(value: Any) -> str:
    """A setting's value as it is written in TOML, without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _nested(value: Any, *keys: str) -> float | None:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return number(value)


def load_run(folder: Path) -> RunData:
    """Read config.json, metrics.jsonl and summary.json of a run folder.

    Raises
    ------
    FedappError
        If the folder holds neither settings nor metrics.
    """
    notes: list[str] = []
    config = run_files.read_object(folder / "config.json", notes)
    rows = run_files.read_rows(folder / "metrics.jsonl", notes)
    has_summary = (folder / "summary.json").exists()  # its absence is normal while a run goes on
    summary = run_files.read_object(folder / "summary.json", notes) if has_summary else {}
    if not config and not rows and not summary:
        raise FedappError(
            f"nothing to report: {folder} holds no readable config.json, metrics.jsonl or "
            "summary.json; give the folder of a run, for example runs/latest"
        )
    flat = run_files.flat_settings(config)
    faulty = _names(flat.get("faults.sites"))  # what is shown is of the honest ones
    site_rows = [r for r in rows if r.get("site") is not None and str(r["site"]) not in faulty]
    sites, held_out, split = _final(summary, site_rows, _names(flat.get("federation.held-out")))
    versions = config.get("versions") or summary.get("versions") or {}
    return RunData(
        folder=folder.resolve().name,
        settings=flat,
        versions=versions if isinstance(versions, dict) else {},
        summary=summary,
        site_rows=site_rows,
        federation_rows=run_files.last_per_round(row for row in rows if row.get("site") is None),
        sites=sites,
        held_out=held_out,
        split=split,
        descriptions=run_files.objects(config.get("sites")),
        notes=notes,
        state=RunFolder(folder).state(),
        ledgers=read_ledgers(RunFolder(folder).ledger, notes),
    )


def _final(
    summary: Mapping[str, Any], site_rows: list[dict[str, Any]], held_out_names: set[str]
) -> tuple[dict[str, Phases], dict[str, Phases], str]:
    """Final metrics of training and held-out sites, and the split they were measured on."""
    split = "test"
    table = run_files.phase_table(summary.get("sites"))
    if not table:
        table = run_files.newest_phases(site_rows, "test")
    if not table:
        split = "validation"
        table = run_files.newest_phases(site_rows, "validation")
    held_out = run_files.phase_table(summary.get("held_out"))
    for site in held_out_names & set(table):
        held_out.setdefault(site, table[site])
    sites = {site: table[site] for site in sorted(table) if site not in held_out}
    return sites, {site: held_out[site] for site in sorted(held_out)}, split


def _names(value: Any) -> set[str]:
    return {part.strip() for part in str(value or "").split(",") if part.strip()}
