"""The end of a run: adapter, summary, report and the final table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.exported import save_exported
from fedapp.results import RunFolder, finite
from server_app.card import model_card
from server_app.log import log, warn
from server_app.roster import Roster
from server_app.strategies.base import BaseStrategy
from server_app.summary import render, summarise


def write_adapter(
    folder: RunFolder,
    strategy: BaseStrategy,
    roster: Roster,
    totals: Mapping[str, float],
) -> None:
    """Write ``adapter/`` with a card of what is measured so far, and say what had to be cut."""
    export = _write_adapter(folder, strategy, roster, totals, {}).get("export")
    if export is not None:
        rank, error = export["rank"], export["relative_error"]
        log(f"adapter: all rounds as one of rank {rank}, relative error {error:.2g}")


def _write_adapter(
    folder: RunFolder,
    strategy: BaseStrategy,
    roster: Roster,
    totals: Mapping[str, float],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """Write ``adapter/`` and return what its card says as a summary."""
    config, site = strategy.config, roster.reference
    exported = strategy.exported()
    summary: dict[str, Any] = finite(
        summarise(
            config,
            folder.read_metrics(),
            name=folder.path.name,
            totals=totals,
            adapter_digest=exported.adapter.digest(),
            missing=missing,
        )
    )
    summary["versions"]["torch"] = site.torch_version
    if exported.error is not None:
        summary["export"] = {"rank": exported.peft_config["r"], "relative_error": exported.error}
    card = model_card(config, site, summary)
    peft_config = {**site.peft_config, **exported.peft_config}
    save_exported(config, exported.adapter, folder.adapter, peft_config, card)
    return summary


def write_results(
    folder: RunFolder,
    strategy: BaseStrategy,
    roster: Roster,
    totals: Mapping[str, float],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """Write ``adapter/``, ``summary.json``, ``report.html``; print the table; return the summary.

    A report that cannot be made is named in the log; the run is complete without it.
    """
    summary = _write_adapter(folder, strategy, roster, totals, missing)
    folder.write_summary(summary)
    print(render(summary, strategy.config), flush=True)
    _report(folder)
    return summary


def _report(folder: RunFolder) -> None:
    try:
        from fedapp.report import write_report

        log(f"report: {write_report(folder.path)}")
    except Exception as error:
        warn(
            f"the report was not written ({type(error).__name__}: {error}); the run is complete, "
            "try `fedapp report` later"
        )
