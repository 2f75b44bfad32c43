"""Four patients of one hospital, one of whom differs from the others: the heart data as choices.

Data: see `client_app.data.sources.heart`. 199 questions: Cleveland 75, Hungary 72, VA Long Beach
44, Switzerland 8, where so few patients are healthy.
"""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.schemas.multiple_choice import question
from client_app.data.sources.choices_odd import odd_one_out
from client_app.data.sources.heart import LABELS, SCAN, SEX, patients
from client_app.data.table import Table


def read_choices() -> Table:
    """Read the questions of the four hospitals; every patient is in at most one.

    The stratum is what is asked for: heart disease or none. At a hospital where most patients are
    ill nearly all questions ask for the healthy one, and the other way round.

    Raises
    ------
    DataError
        See `heart.read_heart`.
    """
    rows: dict[str, dict[str, str]] = {}
    for row in patients():
        rows.setdefault(brief_note(row), row)  # of patients with one note only the first
    examples, sites = [], []
    for site in sorted({row["dataset"] for row in rows.values()}):
        notes: dict[str, list[str]] = {label: [] for label in LABELS}
        for note, row in rows.items():
            if row["dataset"] == site:
                notes[LABELS[int(row["num"]) > 0]].append(note)
        for kind, choices, answer in odd_one_out(notes, f"heart {site}"):
            examples.append(question(f"Which patient has {kind}?", choices, answer, kind))
            sites.append(site)
    return Table("embedded:choices", examples, sites, site_column="dataset")


def brief_note(row: Mapping[str, str]) -> str:
    """Write what tells most about a patient; findings that are normal or missing are left out.

    A question holds four, so a note is shorter than `heart.note`: 16 tokens on average, not 42.
    """
    parts = [f"{SEX[row['sex']]} {float(row['age']):.0f}", row["cp"]]
    if row["thalch"]:
        parts.append(f"pulse {float(row['thalch']):.0f}")
    if row["exang"].upper() == "TRUE":
        parts.append("exercise angina")
    if row["oldpeak"] and float(row["oldpeak"]):
        parts.append(f"ST {float(row['oldpeak']):g}")
    if row["ca"] and float(row["ca"]):
        parts.append(f"{float(row['ca']):.0f} vessels")
    if row["thal"] and row["thal"] != "normal":
        parts.append(SCAN[row["thal"]].removeprefix("thallium "))
    return ", ".join(parts)
