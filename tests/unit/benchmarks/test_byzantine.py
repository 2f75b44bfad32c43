"""The grid of attacks and rules: its cells, its table and its claims."""

import itertools
import json

import pytest

from benchmarks import byzantine
from benchmarks.byzantine import ATTACKS, FAULTY, RULES, Cell, cells, faulty_sites, plan, settings
from benchmarks.byzantine_table import claims, rows, show
from fedapp.config import RunConfig

SITES = [f"site-{k}" for k in range(8)]


def grid():
    return list(cells(["digits"], list(RULES), list(ATTACKS), [0]))


def test_the_grid_is_complete_and_nothing_runs_twice():
    keys = [cell.key for cell in grid()]

    assert len(set(keys)) == len(keys)
    both = len(RULES) - 2
    assert len(keys) == len(RULES) + len(FAULTY) * (1 + len(ATTACKS) * both)
    assert [c.faulty for c in grid()] == sorted(c.faulty for c in grid())


def test_fewer_faulty_sites_are_among_the_more_and_the_seed_draws_them():
    drawn = [set(faulty_sites(SITES, count, 0)) for count in (0, *FAULTY)]

    assert [len(names) for names in drawn] == [0, 1, 4, 6, 7]
    assert all(one <= other for one, other in itertools.pairwise(drawn))
    assert any(faulty_sites(SITES, 4, 0) != faulty_sites(SITES, 4, seed) for seed in range(1, 5))


def test_every_cell_has_settings_that_the_rules_accept():
    for cell in grid():
        own = settings(cell, SITES)
        config = RunConfig.from_flat(own)
        honest = set(SITES) - set(config.faults.sites)
        assert len(honest) == 8 - cell.faulty
        assert config.fltrust.root in honest
        assert 8 - config.krum.faulty - 2 >= 1
        assert 2 * int(config.trimmed_mean.beta * 8) < 8
    four = RunConfig.from_flat(settings(Cell("digits", "ipm", 4, "krum", 0), SITES))
    assert (four.krum.faulty, int(four.trimmed_mean.beta * 8)) == (4, 3)
    assert four.faults.attack == ("ipm",)


def entry(*accuracy, **more):
    named = {f"site-{k}": value for k, value in enumerate(accuracy)}
    return {"accuracy": named, "cpu_seconds": 2.0, **more}


def test_the_table_puts_local_only_and_the_oracle_beside_every_row():
    runs = {
        "digits/none/0/local-only/seed0": entry(0.6, 0.8, 0.2),
        "digits/none/0/lightyear/seed0": entry(0.9, 0.9, 0.9),
        "digits/none/0/average/seed0": entry(0.9, 0.9, 0.92),
        "digits/none/4/oracle/seed0": entry(0.8, 0.9),
        "digits/ipm/4/lightyear/seed0": entry(
            0.8, 0.84, accepted_honest=0.7, accepted_faulty=0.1, faulty_weight=None
        ),
        "digits/ipm/4/lightyear/seed1": entry(0.6, 0.8),
        "digits/ipm/4/fedavg/seed0": entry(0.1, 0.3),
    }

    table = rows(runs)

    row = table["digits/ipm/4"]
    assert sorted(row) == ["fedavg", "lightyear", "local-only", "oracle"]
    assert row["local-only"]["mean"] == pytest.approx(0.7), (
        "of the sites that are honest in the row"
    )
    assert row["oracle"]["mean"] == pytest.approx(0.85)
    assert row["lightyear"]["mean"] == pytest.approx(0.76)
    assert row["lightyear"]["worst"] == pytest.approx(0.7)
    assert (row["lightyear"]["accepted_faulty"], row["lightyear"]["seeds"]) == (0.1, 2)
    assert "faulty_weight" not in row["lightyear"]
    found = claims(table)
    assert found["digits/none/0"]["holds"]
    assert not found["digits/ipm/4"]["holds"], "0.76 is below 95 % of 0.85"
    assert "FAILS: digits/ipm/4" in show(runs)


def test_the_plan_extrapolates_from_what_has_run():
    todo = [Cell("digits", "none", 0, rule, 0) for rule in ("fedavg", "krum", "median")]
    runs = {todo[0].key: entry(0.5)}

    assert "3 runs, 2 left, 2.0 s each (1 rules measured): 0.00 core hours" in plan(todo, runs)
    assert "run one cell" in plan(todo, {})


def test_the_texts_are_of_eight_sites(tmp_path, monkeypatch):
    from client_app.data.sources import heart, sentiment
    from client_app.data.sources.heart import read_heart

    table = read_heart()

    def rated():
        return type(table)(
            name="rated",
            examples=table.examples[:8],
            sites=[f"source-{k % 4}" for k in range(8)],
            label_map=heart.LABELS,
        )

    monkeypatch.setattr(sentiment, "read_sentiment", rated)
    path = byzantine.write_texts(tmp_path / "texts.jsonl")

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["site"] for line in lines}) == 8
    assert {line["label"] for line in lines} == {"0", "1"}
