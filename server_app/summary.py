"""``summary.json`` and the final table, as functions of what ``metrics.jsonl`` holds."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapp.config import RunConfig
from fedapp.faults import rehearsal
from fedapp.results import versions
from fedapp.tasks import NARROW, TASKS, TaskInfo, columns, headline, task_info

PHASES = ("local-only", "received", "personal")
METRICS = tuple(dict.fromkeys(name for info in TASKS.values() for name in info.reported))

Phases = dict[str, dict[str, float]]


def test_table(rows: Iterable[Mapping[str, Any]]) -> dict[str, Phases]:
    """Return site -> phase -> metrics on the test split; the newest row counts."""
    table: dict[str, Phases] = {}
    for row in rows:
        if row.get("site") is not None and row.get("split") == "test":
            metrics = {name: row[name] for name in METRICS if name in row}
            table.setdefault(row["site"], {})[row["phase"]] = metrics
    return dict(sorted(table.items()))


def summarise(
    config: RunConfig,
    rows: Iterable[Mapping[str, Any]],
    *,
    name: str,
    totals: Mapping[str, float],
    adapter_digest: str,
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """Return the content of ``summary.json``.

    Parameters
    ----------
    config : RunConfig
    rows : iterable of mapping
        All rows of ``metrics.jsonl``.
    name : str
        Name of the run folder.
    totals : mapping
        ``wall_seconds``, ``training_seconds``, ``bytes_up``, ``bytes_down`` of the whole run.
    adapter_digest : str
        ``Adapter.digest()`` of the final model.
    missing : mapping of str to str
        What could not be measured at the end, and why.
    """
    table = test_table(rows)
    held_out = {site: table[site] for site in table if site in config.federation.held_out}
    faulty = {site: table[site] for site in table if site in config.faults.sites}
    sites = {site: table[site] for site in table if site not in {*held_out, *faulty}}
    told = rehearsal(config)
    return {
        "method": config.method,
        "algorithm": config.federation.algorithm,
        "seed": config.seed,
        "name": name,
        "status": "completed",
        "rounds": config.federation.rounds,
        "sites": sites,
        "mean": {p: _mean(sites, p, task_info(config)) for p in PHASES if _has(sites, p)},
        "worst": {p: _worst(sites, p, headline(config)) for p in PHASES if _has(sites, p)},
        "held_out": held_out,
        **({"rehearsal": told, "faulty": faulty} if told else {}),
        "missing": dict(missing),
        **{key: totals[key] for key in ("wall_seconds", "training_seconds")},
        **{key: int(totals[key]) for key in ("bytes_up", "bytes_down")},
        "adapter_digest": adapter_digest,
        "versions": versions(),
    }


def render(summary: Mapping[str, Any], config: RunConfig | None = None, width: int = 110) -> str:
    """Return the final table as text: site x phase x metric, mean and worst.

    A site's name is text: brackets in it are no markup.

    Parameters
    ----------
    summary : mapping
        What `summarise` returned.
    config : RunConfig, optional
        The run's settings: the task has its own metrics. By default those of classification.
    width : int
        Characters.
    """
    config = config if config is not None else RunConfig()
    shown = columns(config)[:NARROW]
    rows = {**summary["sites"], **summary["held_out"]}
    phases = [phase for phase in PHASES if _has(rows, phase)]
    table = Table(title="Test metrics of the final models", title_justify="left")
    table.add_column("site", no_wrap=True)
    for phase in phases:
        for number, name in enumerate(shown):
            short = task_info(config).metrics[name].title
            table.add_column(f"{'' if number else phase}\n{short}", justify="right", no_wrap=True)
    for site, row in summary["sites"].items():
        table.add_row(Text(site), *_cells(row, phases, shown))
    for site, row in summary["held_out"].items():
        table.add_row(Text(f"{site} (held out)"), *_cells(row, phases, shown))
    table.add_section()
    table.add_row("mean", *_cells(summary["mean"], phases, shown))
    table.add_row("worst", *_cells(summary["worst"], phases, shown))
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False, color_system=None).print(table)
    worst = ", ".join(f"{phase}: {row['site']}" for phase, row in summary["worst"].items())
    told = summary.get("rehearsal")
    return (
        (f"{told}\n" if told else "")
        + stream.getvalue()
        + _partial(summary, headline(config))
        + (f"worst site: {worst}\n" if worst else "")
    )


def _partial(summary: Mapping[str, Any], metric: str) -> str:
    """Say which means are not over all sites, so that nobody compares them unawares."""
    total = len(summary["sites"])
    counts = {phase: mean["sites"].get(metric, 0) for phase, mean in summary["mean"].items()}
    parts = [f"{phase}: {count} of {total} sites" for phase, count in counts.items()]
    return f"means over {', '.join(parts)}\n" if any(n != total for n in counts.values()) else ""


def _cells(
    row: Mapping[str, Mapping[str, float]], phases: Iterable[str], shown: Iterable[str]
) -> list[str]:
    return [
        f"{row[phase][name]:.3f}" if name in row.get(phase, {}) else "-"
        for phase in phases
        for name in shown
    ]


def _has(sites: Mapping[str, Phases], phase: str) -> bool:
    return any(phase in phases for phases in sites.values())


def _mean(sites: Mapping[str, Phases], phase: str, task: TaskInfo) -> dict[str, Any]:
    """Mean over the sites that have the metric, each site counting the same.

    ``"sites"`` tells for each metric over how many sites the mean is.
    """
    means: dict[str, Any] = {"sites": {}}
    for name in task.metrics:
        values = [p[phase][name] for p in sites.values() if name in p.get(phase, {})]
        if values:
            means[name] = fmean(values)
            means["sites"][name] = len(values)
    return means


def _worst(sites: Mapping[str, Phases], phase: str, metric: str) -> dict[str, Any]:
    """The site with the lowest value of the headline metric, the first by name on a tie."""
    having = {site: p[phase] for site, p in sites.items() if metric in p.get(phase, {})}
    if not having:
        return {"site": ""}
    site = min(having, key=lambda name: (having[name][metric], name))
    return {"site": site, **having[site]}
