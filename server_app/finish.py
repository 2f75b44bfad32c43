"""The end of a run: adapter, summary, report and the final table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedapp.peft_format import save_peft
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
    missing: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Write ``adapter/`` with a card of what is measured so far; return that as a summary."""
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
        rank = exported.peft_config["r"]
        summary["export"] = {"rank": rank, "relative_error": exported.error}
        log(f"adapter: all rounds as one of rank {rank}, relative error {exported.error:.2g}")
    card = model_card(config, site, summary)
    peft_config = {**site.peft_config, **exported.peft_config}
    save_peft(exported.adapter, folder.adapter, peft_config, card)
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
    summary = write_adapter(folder, strategy, roster, totals, missing)
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
