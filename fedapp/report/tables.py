"""The tables: final results, held-out hospitals, and the numbers behind the plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedapp.report.intervals import Interval
from fedapp.report.markup import Html, element, join, name
from fedapp.report.run_data import PHASES, RunData, number
from fedapp.report.run_files import Metrics, Phases
from fedapp.report.units import DASH, decimal, duration, interval_text, size
from fedapp.tasks import title

_GROUPS = {
    "local-only": "Trained alone",
    "received": "Federated, as received",
    "personal": "Personal, after training",
}
MOST_ROUNDS = 200
MOST_ROWS = 16  # a longer table scrolls in its own box


def scroll(label: str, table: Html, *, tall: bool = False) -> Html:
    """A box in which a wide table scrolls; reachable by keyboard.

    A ``tall`` one also scrolls vertically, between its head and its summary rows.
    """
    classes = "scroll tall" if tall else "scroll"
    return element("div", table, class_=classes, role="region", tabindex="0", aria_label=label)


def final_table(run: RunData) -> Html:
    """Hospital x phase with the task's metrics (95 % Wilson interval); mean and worst rows."""
    phases = run.phases()
    body = [_site_row(run, site, run.sites[site], phases) for site in run.sites]
    foot = [_mean_row(run, phases), _worst_row(run, phases)] if len(run.sites) > 1 else []
    table = element(
        "table",
        element("caption", f"Metrics on the {run.split} split"),
        _head(run, run.split, phases),
        element("tbody", *body),
        element("tfoot", *foot) if foot else None,
        id="results",
    )
    box = scroll("Final results per hospital", table, tall=len(run.sites) > MOST_ROWS)
    return join(box, element("p", _note(run), class_="quiet"))


def _note(run: RunData) -> str:
    parts = []
    if run.metric.is_proportion:
        parts.append(f"Under each {run.metric.name}: its 95 % interval (Wilson for one hospital).")
    if "rouge_l" in run.columns:
        parts.append(
            "ROUGE-L and exact match are means over the answers that the model wrote; loss, "
            "perplexity and token accuracy are per token of the given responses."
        )
    if "f1" in run.columns:
        parts.append("F1 is the mean over classes.")
    one_class = (
        ", such as the AUC where a split holds one class only" if "auc" in run.columns else ""
    )
    personal = (
        "model as mixed with those of its neighbours in the last round"
        if run.mixes
        else "model after its last local training, which began before the last merge"
    )
    parts.append(
        f"A dash ({DASH}) is a number that is not defined{one_class}. Personal: the hospital's own "
        f"{personal}."
    )
    return " ".join(parts)


def held_out_table(run: RunData) -> Html:
    """Hospitals that never trained."""
    phases = [p for p in PHASES if any(p in phases for phases in run.held_out.values())]
    table = element(
        "table",
        element("caption", "Never trained; the final model is only tested there."),
        _head(run, "test", phases),
        element("tbody", *(_site_row(run, site, p, phases) for site, p in run.held_out.items())),
        id="held-out",
    )
    return scroll("Results at held-out hospitals", table)


def rounds_table(run: RunData) -> Html:
    """The numbers behind the plots, per round, for the federation."""
    rows = run.federation_rows
    step = -(-len(rows) // MOST_ROUNDS)
    shown = [row for i, row in enumerate(rows) if i % step == 0 or i == len(rows) - 1]
    columns: list[tuple[str, str]] = [
        *((name, title(name)) for name in run.task.followed),
        ("replies", "Replies"),
        ("retries", "Retries"),
        ("bytes_up", "Sent"),
        ("bytes_down", "Received"),
        ("seconds", "Time"),
        ("training_seconds", "Training, summed"),
    ]
    known = {key for key, _ in columns} | {"round", "examples"}
    extra = sorted(
        {k for row in rows for k, v in row.items() if k not in known and number(v) is not None}
    )
    columns = [c for c in columns if any(c[0] in row for row in rows)]
    columns += [(key, key.replace("_", " ")) for key in extra]
    absent = any(row.get("missing") for row in rows)
    head = element(
        "tr",
        _key("Round", "col"),
        *(_th(heading, "col") for _, heading in columns),
        element("th", "Missing", scope="col", class_="remark") if absent else None,
    )
    body = [
        element(
            "tr",
            _key(row["round"], "row"),
            *(_td(_cell(key, row.get(key))) for key, _ in columns),
            element("td", _missing(row.get("missing")), class_="remark") if absent else None,
        )
        for row in shown
    ]
    *firsts, last = (run.task.metrics[name].name for name in run.task.followed)
    means = f"{', '.join(firsts)} and {last}"
    caption = f"Federation, per round; {means}: mean of the personal models on validation."
    if step > 1:
        caption += f" Every {step}th of {len(rows)} rounds is shown."
    table = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *body)
    )
    return scroll("Numbers per round", table, tall=len(shown) > MOST_ROWS)


def hospitals_table(run: RunData) -> Html:
    """What every hospital told before round 1."""
    splits = ("train", "validation", "test")
    body = []
    for site, told in run.descriptions.items():
        examples, notes = told.get("examples"), told.get("notes")
        counts = [number(examples.get(s)) if isinstance(examples, dict) else None for s in splits]
        cells = [_td(DASH if count is None else f"{count:,.0f}") for count in counts]
        remarks = "; ".join(map(str, notes)) if isinstance(notes, list) and notes else DASH
        device = _td(told.get("device") or DASH)
        note = element("td", remarks, class_="remark")
        body.append(element("tr", _key(name(site), "row"), *cells, device, note))
    head = element(
        "tr",
        _key("Hospital", "col"),
        *(_th(heading, "col") for heading in ("Training", "Validation", "Test", "Device")),
        element("th", "Notes", scope="col", class_="remark"),
    )
    table = element(
        "table",
        element("caption", "Records per split, as told in the handshake"),
        element("thead", head),
        element("tbody", *body),
        id="hospitals",
    )
    return scroll("The hospitals", table, tall=len(body) > MOST_ROWS)


def _missing(value: object) -> str:
    if not isinstance(value, dict) or not value:
        return DASH
    return ", ".join(f"{site} ({kind})" for site, kind in sorted(value.items()))


def _cell(key: str, value: object) -> str:
    amount = number(value)
    if amount is None:
        return DASH
    if key.startswith("bytes"):
        return size(amount)
    if key.endswith("seconds"):
        return duration(amount)
    return f"{amount:.0f}" if amount.is_integer() and abs(amount) < 1e9 else f"{amount:.4g}"


def _head(run: RunData, split: str, phases: Sequence[str]) -> Html:
    columns = run.columns
    titles = {**_GROUPS, "personal": "Personal, after mixing"} if run.mixes else _GROUPS
    groups = [
        element(
            "th",
            element("span", class_=f"dot dot-{phase}", aria_hidden="true"),
            titles[phase],
            scope="colgroup",
            colspan=len(columns),
            class_="group edge",
        )
        for phase in phases
    ]
    metrics = [
        element("th", title(m), scope="col", class_="edge" if m == columns[0] else None)
        for _ in phases
        for m in columns
    ]
    return element(
        "thead",
        element(
            "tr",
            _key("Hospital", "col", rowspan=2),
            _th(_examples(split), "col", rowspan=2),
            *groups,
        ),
        element("tr", *metrics),
    )


def _examples(split: str) -> Html:
    return join(split.capitalize(), element("br"), "examples")


def _site_row(run: RunData, site: str, phases_of: Phases, phases: Iterable[str]) -> Html:
    sizes = [n for m in phases_of.values() if (n := number(m.get("examples"))) is not None]
    cells = []
    for phase in phases:
        metrics = phases_of.get(phase, {})
        cells += _metric_cells(run.columns, run.interval(metrics), metrics)
    size_cell = _td(f"{max(sizes):,.0f}" if sizes else DASH)
    return element("tr", _key(name(site), "row"), size_cell, *cells)


def _metric_cells(columns: Sequence[str], limits: Interval | None, metrics: Metrics) -> list[Html]:
    value, *shown = (decimal(number(metrics.get(metric))) for metric in columns)
    small = element("span", interval_text(limits), class_="ci") if limits else None
    return [element("td", value, small, class_="edge"), *map(_td, shown)]


def _mean_row(run: RunData, phases: Iterable[str]) -> Html:
    cells: list[Html] = []
    for phase in phases:
        means = {metric: run.mean(phase, metric) for metric in run.columns}
        cells += _metric_cells(run.columns, run.mean_interval(phase), means)
    sizes = [
        n
        for p in run.sites.values()
        for m in list(p.values())[:1]
        if (n := number(m.get("examples"))) is not None
    ]
    total = element("td", f"{sum(sizes):,.0f}", element("span", "in all", class_="ci"))
    return element("tr", _key("Mean of hospitals", "row"), total, *cells)


def _worst_row(run: RunData, phases: Iterable[str]) -> Html:
    cells: list[Html] = []
    for phase in phases:
        worst = run.worst(phase)
        site, metrics = worst if worst is not None else ("", {})
        value = decimal(number(metrics.get(run.headline)))
        label = element("span", name(_clip(site)), class_="ci")
        cells.append(element("td", value, label, class_="edge"))
        cells += [_td(decimal(number(metrics.get(metric)))) for metric in run.columns[1:]]
    return element("tr", _key("Worst hospital", "row"), _td(""), *cells)


def _clip(text: str, length: int = 24) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _key(content: object, scope: str, rowspan: int | None = None) -> Html:
    """A header cell of the first column, which stays in view while the rest scrolls."""
    return element("th", content, scope=scope, rowspan=rowspan, class_="key")


def _th(content: object, scope: str, rowspan: int | None = None) -> Html:
    return element("th", content, scope=scope, rowspan=rowspan)


def _td(content: object) -> Html:
    return element("td", content)
