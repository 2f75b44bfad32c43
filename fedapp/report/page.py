"""The whole page."""

from __future__ import annotations

from fedapp.how_to_load import loading_code
from fedapp.report import tables
from fedapp.report.agreement import agreement_section
from fedapp.report.cost import cost_section
from fedapp.report.curves import learning_section
from fedapp.report.diagnostics import diagnostics_section
from fedapp.report.honest import honest_section
from fedapp.report.intervals import Interval
from fedapp.report.markup import Html, element, join, name
from fedapp.report.offsets import offsets_section
from fedapp.report.run_data import Row, RunData, number
from fedapp.report.style import CSS
from fedapp.report.units import decimal, duration, interval_text, plural, size
from fedapp.report.words import phase_name, result

# Nothing may be fetched or run, whatever a name or a setting holds.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def render(run: RunData) -> str:
    """Return the report as one HTML document."""
    title = f"{run.name} · fedapp report"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Html('<link rel="icon" href="data:,">'),
        Html(f"<style>{CSS}</style>"),
    )
    sections = [
        _notices(run),
        _result(run),
        _held_out(run),
        learning_section(run),
        diagnostics_section(run),
        honest_section(run),
        agreement_section(run.ledgers, run.settings),
        offsets_section(run),
        cost_section(run),
        _numbers(run),
        _hospitals(run),
        _settings(run),
        _next(run),
    ]
    body = element(
        "body",
        _header(run),
        element("main", *sections),
        element(
            "footer", "Written by fedapp. This file is self-contained: it loads and runs nothing."
        ),
    )
    return "<!doctype html>\n" + element("html", head, "\n", body, lang="en") + "\n"


def _header(run: RunData) -> Html:
    done, planned = run.rounds_done, run.rounds_planned
    rounds = f"{done} of {plural(planned, 'round')}" if planned else plural(done, "round")
    seed = run.summary.get("seed", run.settings.get("seed"))
    chips = [
        element("li", run.status, class_=None if run.status == "completed" else "state-bad"),
        element("li", "rehearsal of attacks", class_="state-bad") if run.rehearsal else None,
        element("li", "method ", element("strong", run.method)),
        element("li", rounds),
        # None is known before the handshake.
        element("li", plural(len(run.site_names), "hospital")) if run.site_names else None,
        element("li", f"seed {seed}") if seed is not None else None,
        element("li", run.settings["model.source"]) if "model.source" in run.settings else None,
        element("li", run.settings["data.source"]) if "data.source" in run.settings else None,
    ]
    return element(
        "header",
        element("p", "Federated fine-tuning report", class_="eyebrow"),
        element("h1", name(run.name)),
        element("ul", *chips, class_="chips"),
    )


_UNFINISHED = {
    "running": "it is still going on.",
    "interrupted": "its process has gone, because it was killed or the machine went down.",
    "stopped": "it was stopped.",
    "failed": "it failed; status.json says why.",
}
_UNKNOWN = "it is still going on, was stopped, or failed."


def _notices(run: RunData) -> Html | None:
    lines = [run.rehearsal + "."] if run.rehearsal else []
    if not run.summary:
        lines.append(
            f"This run has not finished: {_UNFINISHED.get(run.state, _UNKNOWN)} What is below was "
            f"recorded up to round {run.rounds_done} and is not a result."
        )
    elif run.status != "completed":
        error = run.summary.get("error")
        lines.append(f"This run ended as “{run.status}”" + (f": {error}" if error else "."))
    if run.sites and run.split != "test":
        lines.append("There is no test yet; the table shows the newest validation metrics.")
    missing = run.summary.get("missing")
    if isinstance(missing, dict):
        lines += [f"Not measured: {what}: {why}" for what, why in sorted(missing.items())]
    lines += run.notes
    if not lines:
        return None
    serious = bool(run.rehearsal) or run.status not in ("completed", "unfinished")
    return element(
        "div",
        *(element("p", line) for line in lines),
        class_="notice bad" if serious else "notice",
        role="status",
    )


def _result(run: RunData) -> Html:
    content = join(*result(run))
    table = tables.final_table(run) if run.sites else None
    return element(
        "section",
        element("h2", "Result", id="result"),
        element("div", content, class_="lead"),
        _tiles(run),
        table,
        aria_labelledby="result",
    )


def _tiles(run: RunData) -> Html | None:
    phases = [p for p in run.phases() if run.mean(p, run.headline) is not None]
    if not phases:
        return None
    best = max(phases, key=lambda p: run.mean(p, run.headline) or 0.0)
    tiles: list[Html | None] = [
        _tile(
            f"Mean {run.split} {run.metric.name}",
            decimal(run.mean(best, run.headline)),
            _under(run.mean_interval(best), phase_name(run, best)),
        )
    ]
    worst = run.worst(best)
    if worst is not None and len(run.sites) > 1:
        value = number(worst[1].get(run.headline))
        limits = run.interval(worst[1])
        tiles.append(_tile("Worst hospital", decimal(value), _under(limits, name(worst[0]))))
    ranked = [p for p in phases if run.mean(p, "auc") is not None]
    if ranked:
        by_auc = max(ranked, key=lambda p: run.mean(p, "auc") or 0.0)
        tiles.append(_tile("Mean AUC", decimal(run.mean(by_auc, "auc")), phase_name(run, by_auc)))
    tiles.append(_time_tile(run))
    return element("dl", *tiles, class_="tiles")


def _under(limits: Interval | None, text: object) -> Html:
    interval = (f"95 %: {interval_text(limits)}", element("br")) if limits else ()
    return join(*interval, text)


def _time_tile(run: RunData) -> Html | None:
    wall = number(run.summary.get("wall_seconds"))
    if wall is None:
        wall = sum(value for _, value in run.series("seconds")) or None
    sent = [value for _, value in run.series("bytes_up")]
    replies = [value for _, value in run.series("replies")]
    note = ""
    if sent and replies and sum(replies) > 0:
        note = f"a hospital sends {size(sum(sent) / sum(replies))} a round"
    return _tile("Time", duration(wall), note) if wall is not None else None


def _tile(label: str, value: str, note: object) -> Html:
    return element(
        "div",
        element("dt", label),
        element("dd", value, class_="value"),
        element("dd", note, class_="note"),
        class_="tile",
    )


def _held_out(run: RunData) -> Html | None:
    if not run.held_out:
        return None
    return element(
        "section",
        element("h2", "Hospitals that never trained", id="held-out-title"),
        element("p", "What a hospital gets that only receives the final model.", class_="quiet"),
        tables.held_out_table(run),
        aria_labelledby="held-out-title",
    )


def _numbers(run: RunData) -> Html | None:
    if not run.federation_rows:
        return None
    summary = element("summary", "The numbers behind the plots")
    return element("details", summary, element("div", tables.rounds_table(run)))


def _hospitals(run: RunData) -> Html | None:
    if not run.descriptions:
        return None
    summary = element("summary", "The hospitals: records, device, notes")
    return element("details", summary, element("div", tables.hospitals_table(run)))


def _settings(run: RunData) -> Html | None:
    rows = run.setting_rows()
    if not rows:
        return None
    changed = [row for row in rows if row.changed]
    text = f" · {len(rows)} in all, {len(changed)} not at their default"
    head = element(
        "tr",
        *(
            element("th", h, scope="col", class_="key" if h == "Setting" else None)
            for h in ("Setting", "Value", "Meaning")
        ),
    )
    ordered = changed + [row for row in rows if not row.changed]
    table = element(
        "table",
        element("caption", "Those that differ from their default come first."),
        element("thead", head),
        element("tbody", *map(_setting_row, ordered)),
        class_="settings",
    )
    return element(
        "section",
        element("h2", "Settings", id="settings"),
        element(
            "details",
            element("summary", "Every setting", element("span", text, class_="quiet")),
            element("div", tables.scroll("Settings", table)),
        ),
        aria_labelledby="settings",
    )


def _setting_row(row: Row) -> Html:
    unit = f" {row.unit}" if row.unit else ""
    shown: object = f"{row.value}{unit}" if row.value else "(empty)"
    if row.changed:
        default = f"default: {row.default or '(empty)'}"
        shown = join(element("mark", shown), element("span", default, class_="ci"))
    return element(
        "tr",
        element("th", element("code", row.key), scope="row", class_="key"),
        element("td", shown, class_="value"),
        element("td", row.description),
    )


def _next(run: RunData) -> Html:
    facts = [
        join(element("dt", key), element("dd", str(value)))
        for key, value in sorted(run.versions.items())
    ]
    digest = run.summary.get("adapter_digest")
    if digest:
        facts.append(
            join(element("dt", "adapter digest"), element("dd", element("code", str(digest))))
        )
    use = [
        element("h3", f"Use the {'model' if run.whole else 'adapter'}"),
        element("p", _where(run)),
        element("pre", element("code", _code(run))),
    ]
    resume = [
        element("h3", "Resume"),
        element(
            "p",
            "Continues from the newest checkpoint with this run's settings; give the path of this "
            "run's folder, for example:",
        ),
        element("pre", element("code", f"fedapp run --resume runs/{run.folder}")),
    ]
    return element(
        "section",
        element("h2", "What to do with this run", id="next"),
        *(use if run.status == "completed" else resume),
        element("h3", "Versions") if facts else None,
        element("dl", *facts, class_="facts") if facts else None,
        aria_labelledby="next",
    )


def _where(run: RunData) -> str:
    if run.whole:
        return "In this run's folder; the base model gives the form and what was not trained:"
    return "With plain PEFT, in this run's folder; adapter_config.json names the base model:"


def _code(run: RunData) -> str:
    told = run.told("peft_config")
    return loading_code(
        run.task,
        told if isinstance(told, dict) else {},
        whole=run.whole,
        base=_base(run),
        outputs=run.classes or 0,
        folder="adapter",
    )


def _base(run: RunData) -> str:
    """The base model as a Python literal."""
    source = str(run.told("base_model") or run.settings.get("model.source", ""))
    if source and (run.task.on_images or not source.startswith("embedded:")):
        return repr(source.partition("@")[0])
    return "base_model_name_or_path"  # as in adapter_config.json
