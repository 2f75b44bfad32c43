"""The grid of attacks and rules as a page and a picture."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.byzantine import DOCS, RESULTS
from benchmarks.byzantine_page import page
from benchmarks.byzantine_picture import _gain, draw
from benchmarks.byzantine_table import rows


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
    assert "Texts without attack, not below the average - 1 point: **no**: .900 < .910." in lines
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


PARTIAL = {
    **RUNS,
    "texts/none/0/local-only/seed1": entry(0.5, 0.5),
    "texts/none/4/oracle/seed1": entry(0.6, 0.7),
    "texts/ipm/4/lightyear/seed1": entry(0.5, 0.6),
    "texts/ipm/4/fedavg/seed1": entry(0.2, 0.3),
    "texts/alie/4/lightyear/seed0": entry(0.9, 0.9),
    "texts/alie/4/ditto/seed0": entry(0.9, 0.9),
}


def test_a_rule_with_fewer_seeds_says_so_stands_last_and_is_never_the_best():
    lines = page(PARTIAL).splitlines()

    at = lines.index("### Texts, 4 of 8 sites faulty")
    assert lines[at + 2 : at + 10] == [
        "|  | ALIE | IPM |",
        "|---|---|---|",
        "| `oracle` | .850/.800 | .750/.700 |",
        "| `local-only` | .700/.600 | .600/.550 |",
        "| `lightyear` | **.900/.900** | **.660/.600** |",
        "| `ditto` | **.900/.900** |  |",
        "| `median` |  | .767/.764 (1) |",
        "| `fedavg` |  | .225/.150 |",
    ]


def test_sites_are_apart_by_rules_with_all_runs_and_others_stand_beside_ours_of_the_same():
    text = page(PARTIAL)
    tail = text[text.index("## Differences") :].splitlines()

    assert "| `lightyear` |  | .030 |" in tail, "of IPM .07 and .05, of ALIE 0"
    at = next(i for i, line in enumerate(tail) if line.startswith("With fewer"))
    rest = [line for line in tail[at:] if line.startswith("| `")]
    assert "| `median` |  | .003 (.070; 1 run) |" in rest
    assert "| `fedavg` |  | .075 (.060; 2 runs) |" in rest
    assert "has the least in 1 of the 3 rows" in text, "without attack, not of IPM nor ALIE"
    assert "(3 to 4 rules," in text, "without median, which has one seed of two"


def test_single_seeds_in_which_a_claim_fails_are_told_by_name():
    attacks = ("sign-flip", "noise", "random", "head-flip", "alie", "ipm", "mixed")
    runs = {
        f"{place}/{attack}/6/lightyear/seed{seed}": entry(0.9 if seed else 0.4)
        for place, some in (("texts", attacks), ("writers", ("ipm", "noise")))
        for attack in some
        for seed in (0, 1)
    } | {
        f"{place}/none/0/local-only/seed{seed}": entry(0.6)
        for place in ("texts", "writers")
        for seed in (0, 1)
    }

    assert (
        "By single seeds 9 of 18 hold; what does not: texts, 6 of 8, seed 0: all seven attacks; "
        "writers, 6 of 8, seed 0: noise, IPM."
    ) in page(runs)


def test_the_page_is_the_same_whatever_python_hashes_to():
    alike = {
        f"texts/ipm/4/{rule}/seed{seed}": entry(0.5, 0.6)
        for rule in ("krum", "median", "fedavg", "lightyear", "balance", "ubar", "ditto")
        for seed in (0, 1)
        if seed == 0 or rule in ("krum", "median", "lightyear")
    }
    code = (
        "import json, sys; from benchmarks.byzantine_page import page; "
        "print(page(json.load(sys.stdin)))"
    )
    root = Path(__file__).resolve().parents[3]
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(alike),
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }

    assert len(made) == 1
    named = [line.split("`")[1] for line in made.pop().splitlines() if line.startswith("| `")]
    assert named[-7:] == ["krum", "lightyear", "median", "balance", "ditto", "fedavg", "ubar"]


def test_the_picture_compares_with_local_only_of_the_same_seeds():
    runs = {
        "texts/none/0/local-only/seed0": entry(0.6, 0.6),
        "texts/none/0/local-only/seed1": entry(0.2, 0.2),
        "texts/ipm/4/krum/seed0": entry(0.5, 0.5),
        "texts/ipm/4/lightyear/seed0": entry(0.6, 0.6),
        "texts/ipm/4/lightyear/seed1": entry(0.6, 0.6),
    }
    row = rows(runs)["texts/ipm/4"]

    assert _gain(row, "krum") == pytest.approx(-0.1)
    assert _gain(row, "lightyear") == pytest.approx(0.2)


@pytest.mark.parametrize(
    "keys",
    [
        (),
        ("writers/none/0/local-only/seed0",),
        ("writers/none/0/local-only/seed0", "writers/none/4/oracle/seed0"),
        ("digits/none/0/lightyear/seed0",),
        ("writers/ipm/4/krum/seed0",),
        ("writers/ipm/6/krum/seed0", "writers/none/0/local-only/seed0"),
        ("elsewhere/ipm/4/krum/seed0",),
        ("writers/ipm/4/lightyear/seed0",),
        ("writers/ipm/4/lightyear/seed0", "writers/ipm/4/krum/seed1"),
    ],
)
def test_of_an_empty_or_partial_grid_there_is_a_page_and_a_picture(keys, tmp_path):
    runs = {key: entry(0.5, 0.6) for key in keys}

    assert page(runs).startswith("# Seven attacks")
    draw(runs, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size
