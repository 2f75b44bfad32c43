"""How the honest sites of a rehearsal did, round by round, and whom they accepted."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from fedapp.report.markup import Html, element
from fedapp.report.refused import accepted_share
from fedapp.report.run_data import RunData, number
from fedapp.report.tables import scroll
from fedapp.report.units import DASH, decimal
from fedapp.tasks import title


def honest_section(run: RunData) -> Html | None:
    """Return a table a round; None unless the run's settings declare faulty sites."""
    faulty = faulty_sites(run)
    if not faulty:
        return None
    rows: dict[int, list[float]] = {}
    for row in run.site_rows:
        value = number(row.get(run.headline))
        wanted = row.get("phase") == "personal" and row.get("split") == "validation"
        if wanted and value is not None and row.get("site") not in faulty:
            rows.setdefault(int(row["round"]), []).append(value)
    if not rows:
        return None
    honest = set(run.site_names) - faulty
    metric = title(run.headline)
    titles = ("Round", f"{metric}, mean", f"{metric}, worst", "Honest accepted", "Faulty accepted")
    body = [
        element(
            "tr",
            element("th", f"{round_}", scope="row", class_="key"),
            element("td", decimal(fmean(values), 3)),
            element("td", decimal(min(values), 3)),
            element("td", _share(run, round_, honest)),
            element("td", _share(run, round_, faulty)),
        )
        for round_, values in sorted(rows.items())
    ]
    caption = (
        f"Personal models of the {len(honest)} honest hospitals on validation, in a rehearsal in "
        f"which {len(faulty)} attack; shares of what honest hospitals heard."
    )
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *(element("th", text, scope="col") for text in titles))),
        element("tbody", *body),
    )
    return element(
        "section",
        element("h2", "Honest hospitals", id="honest"),
        scroll("Honest hospitals, per round", table),
        aria_labelledby="honest",
    )


def faulty_sites(run: RunData) -> set[str]:
    """Return the sites that the settings declare faulty."""
    told = run.settings.get("faults.sites")
    named = told.split(",") if isinstance(told, str) else ()
    return {part.strip() for part in named if part.strip()}


def _share(run: RunData, round_: int, peers: Iterable[str]) -> str:
    faulty = faulty_sites(run)
    entries = [
        entry
        for node, of_node in run.ledgers.items()
        if node not in faulty
        for entry in of_node
        if entry.round == round_
    ]
    share = accepted_share(entries, peers)
    return DASH if share is None else f"{share:.0%}"
