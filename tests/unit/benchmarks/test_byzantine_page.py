"""The grid of attacks and rules as a page and a picture."""

import json

import pytest

from benchmarks.byzantine import DOCS, RESULTS
from benchmarks.byzantine_page import page
from benchmarks.byzantine_picture import draw


def entry(*accuracy, **more):
    return {"accuracy": {f"site-{k}": value for k, value in enumerate(accuracy)}, **more}


RUNS = {
    "texts/none/0/local-only/seed0": entry(0.6, 0.8, 0.2),
    "texts/none/0/lightyear/seed0": entry(0.9, 0.9, 0.9),
    "texts/none/0/average/seed0": entry(0.9, 0.9, 0.96),
    "texts/none/4/oracle/seed0": entry(0.8, 0.9),
    "texts/ipm/4/lightyear/seed0": entry(0.7, 0.84, accepted_honest=0.75, accepted_faulty=0.1),
    "texts/ipm/4/median/seed0": entry(0.77, 0.764),
    "texts/ipm/4/fedavg/seed0": entry(0.1, 0.3),
    "writers/none/0/local-only/seed0": entry(1.0, 1.0),
}


def test_every_number_of_the_page_is_in_its_place():
    lines = page(RUNS).splitlines()

    at = lines.index("### Texts, 4 of 8 sites faulty")
    assert lines[at + 2 : at + 9] == [
        "|  | IPM |",
        "|---|---|",
        "| `oracle` | .850/.800 |",
        "| `local-only` | .700/.600 |",
        "| `lightyear` | **.770/.700** |",
        "| `median` | **.767/.764** |",
        "| `fedavg` | .200/.100 |",
    ]
    assert "| `lightyear` | 75 / 10 |" in lines
    (claim,) = [line for line in lines if line.startswith("| Texts, 4 of 8: 95 %")]
    assert claim == "| Texts, 4 of 8: 95 % of the oracle |  |  |  |  |  | **no**: .770 < .807 |  |"
    assert "Texts without attack, within 1 point of the average: **no**: .900 < .910." in lines
    assert "0 of 2 hold. `fedavg` is below local-only in 1 of the 1 rows" in page(RUNS)
    assert "Without attack: `local-only` 1.000/1.000." in lines
    assert "are means over 1 seed" not in page(RUNS)
    assert "both means over 1 seed" in page(RUNS)


def test_the_page_in_the_documents_says_what_the_results_do():
    results = json.loads(RESULTS.path.read_text(encoding="utf-8"))

    assert (DOCS / "byzantine.md").read_text(encoding="utf-8") == page(results["runs"])


@pytest.mark.parametrize("runs", [RUNS, {**RUNS, "writers/alie/4/krum/seed1": entry(0.5)}])
def test_the_picture_is_drawn_of_whatever_there_is(runs, tmp_path):
    draw(runs, tmp_path / "a.svg")
    draw(runs, tmp_path / "b.svg")

    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8"), "of the same numbers the same"
