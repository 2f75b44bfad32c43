"""What each hospital keeps of its own beside the shared model (pFLAlign), after its last round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.report.markup import Html, element, name
from fedapp.report.run_data import RunData, number
from fedapp.report.tables import MOST_ROWS, scroll
from fedapp.report.units import DASH

_COLUMNS = {
    "delta_norm": "Norm of its offset",
    "gate": "Gate",
    "delta_withdrawn": "Withdrawn",
    "factor": "Factor of the gradient",
}


def offsets_section(run: RunData) -> Html | None:
    """One row a hospital: its offset, the gate that withdraws it, the factor of its gradients."""
    newest: dict[str, Mapping[str, Any]] = {}
    for row in run.site_rows:
        if row.get("phase") == "personal" and any(_cell(row, key) != DASH for key in _COLUMNS):
            newest[str(row["site"])] = row
    if not newest:
        return None
    head = element(
        "tr",
        *(element("th", text, scope="col") for text in ("Hospital", "Round", *_COLUMNS.values())),
    )
    body = [
        element(
            "tr",
            element("th", name(site), scope="row", class_="key"),
            *(element("td", cell) for cell in (row["round"], *(_cell(row, k) for k in _COLUMNS))),
        )
        for site, row in sorted(newest.items())
    ]
    caption = (
        "Gate and factor: the mean over the trained numbers, and from the 10 % to 90 % quantile, "
        "at the last step. Withdrawn: the share of the offset that the gates of the round took."
    )
    table = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *body)
    )
    return element(
        "section",
        element("h2", "The hospitals' offsets", id="offsets"),
        scroll("The hospitals' offsets", table, tall=len(body) > MOST_ROWS),
        aria_labelledby="offsets",
    )


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = number(row.get(key))
    if value is not None:
        return f"{value:.3g}"
    mean, low, high = (number(row.get(f"{key}_{part}")) for part in ("mean", "p10", "p90"))
    if mean is None or low is None or high is None:
        return DASH
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"
