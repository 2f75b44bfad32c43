"""LIGHTYEAR's gates compared: their settings, the claims they keep, and the page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.byzantine import DOCS, GATES, RESULTS, Cell, settings
from benchmarks.byzantine_gates import RUNS
from benchmarks.byzantine_gates_page import GATES as WORDS
from benchmarks.byzantine_gates_page import kept, page
from fedapp.config import RunConfig
from fedapp.gates import Gates
from fedapp.peer_rules.lightyear import thresholds

SITES = [f"site-{k}" for k in range(8)]
WHOLE = {
    "calibrated-kernel": Gates(0.4, True, None, None),
    "fixed-kernel": Gates(0.85, False, None, None),
    "prediction": Gates(None, False, 0.2, None),
    "distance": Gates(None, False, None, 0.9),
    "all-gates": Gates(0.4, True, 0.2, 0.9),
}


@pytest.mark.parametrize("gate", GATES)
def test_each_choice_sets_its_gates_and_leaves_the_others_open(gate: str) -> None:
    config = RunConfig.from_flat(settings(Cell("writers", "ipm", 4, gate, 0), SITES))

    assert config.method == "lightyear"
    found = thresholds(config.lightyear.effective(), whole=True, with_head=False)
    asked = WHOLE[gate]
    assert found == asked
    lora = thresholds(config.lightyear.effective(), whole=False, with_head=True)
    far, head = (3.0, 1.1) if asked.distance else (None, None)
    assert lora == Gates(asked.kernel, asked.calibrate, asked.prediction, far, head)


def test_the_default_is_all_of_them_for_whole_models_and_the_distances_for_lora() -> None:
    default = RunConfig.from_flat({"method": "lightyear"}).lightyear.effective()
    for whole, gate in ((True, "all-gates"), (False, "distance")):
        config = RunConfig.from_flat(settings(Cell("texts", "ipm", 4, gate, 0), SITES))
        same = thresholds(config.lightyear.effective(), whole=whole, with_head=not whole)
        found = thresholds(default, whole=whole, with_head=not whole)
        if whole:
            assert found == same
        else:  # where no such gate looks, its number does not matter
            assert (found.distance, found.head) == (same.distance, same.head)
            assert found.kernel is found.prediction is None


def test_what_is_the_default_under_another_name_gave_the_same_runs() -> None:
    """But one, of which rounding turned one answer at two sites (of 60 records each)."""
    grid, runs = RESULTS.load(), RUNS.load()
    same = []
    for key, run in runs.items():
        place, attack, faulty, gate, seed = key.split("/")
        if (place, gate) in {("writers", "all-gates"), ("texts", "distance")}:
            before = grid[f"{place}/{attack}/{faulty}/lightyear/{seed}"]["accuracy"]
            same.append(run["accuracy"] == before)
            assert run["accuracy"] == pytest.approx(before, abs=1 / 60 + 1e-6)
    assert (len(same), sum(same)) == (2 * 3 * (1 + 7 * 3), 131)


def run(*accuracy: float) -> dict[str, Any]:
    named = {f"site-{k}": value for k, value in enumerate(accuracy)}
    return {"accuracy": named, "accepted_honest": 0.5, "accepted_faulty": 0.25}


def test_claims_are_those_of_the_grid_with_a_choice_in_the_place_of_the_default() -> None:
    grid = {
        "texts/none/0/average/seed0": run(0.8, 0.8),
        "texts/none/0/lightyear/seed0": run(0.8, 0.8),
        "texts/none/0/local-only/seed0": run(0.7, 0.7),
        "texts/none/4/oracle/seed0": run(0.8, 0.8),
        "texts/ipm/4/lightyear/seed0": run(0.79, 0.79),
        "texts/ipm/1/lightyear/seed0": run(0.1, 0.1),  # of which there is no claim
        "texts/ipm/6/lightyear/seed0": run(0.65, 0.65),
    }
    runs = {
        "texts/none/0/prediction/seed0": run(0.785, 0.785),
        "texts/ipm/4/prediction/seed0": run(0.77, 0.77),
        "texts/ipm/6/prediction/seed0": run(0.695, 0.695),
    }

    found = kept(runs, grid)

    assert found["lightyear"]["texts"] == {"claims": 3, "holds": 2, "fails": ["texts/ipm/6"]}
    assert found["prediction"]["texts"] == {"claims": 3, "holds": 2, "fails": ["texts/none/0"]}
    assert found.keys() == {"lightyear", "prediction"}


def test_the_page_says_what_the_results_say() -> None:
    assert json.loads(RUNS.path.read_text())["claims"] == kept(RUNS.load(), RESULTS.load())
    text = (DOCS / "gates.md").read_text(encoding="utf-8")

    assert text == page(RUNS.load(), RESULTS.load())
    for gate in WORDS:
        assert text.count(f"| `{gate}` |") >= 2 * (1 + 2 * 3), gate
