"""The grid of attacks and rules: its cells, its table and its claims."""

import itertools
import json

import numpy as np
import pytest

from benchmarks import byzantine
from benchmarks.byzantine import (
    ATTACKS,
    FAULTY,
    RULES,
    TELLING,
    Cell,
    cells,
    faulty_sites,
    plan,
    settings,
    write_writers,
)
from benchmarks.byzantine_run import MOST_REMEMBERED, Federation, Memory
from benchmarks.byzantine_table import below_local_only, claims, complete, rows, show, spreads
from fedapp.config import RunConfig

SITES = [f"site-{k}" for k in range(8)]


def grid():
    return list(cells(["digits"], list(RULES), list(ATTACKS), [0]))


def test_the_grid_is_complete_and_nothing_runs_twice():
    keys = [cell.key for cell in grid()]

    assert len(set(keys)) == len(keys)
    both = len(RULES) - 2
    assert len(keys) == len(RULES) + len(FAULTY) * (1 + len(ATTACKS) * both)


def test_what_tells_most_comes_first_and_then_everybody_at_half():
    order = cells(["writers", "texts"], list(RULES), list(ATTACKS), [0, 1])

    first = [cell for cell in order if cell.rule in TELLING and cell.faulty in (0, 4)]
    assert order[: len(first)] == first
    assert [cell.seed for cell in first] == sorted(cell.seed for cell in first)
    assert {cell.place for cell in first[: len(first) // 2]} == {"writers", "texts"}
    assert {cell.rule for cell in order[-200:]}.isdisjoint(TELLING)


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
    assert found["digits/ipm/4"]["holds"], "0.82 of the seed that the oracle has as well"
    assert found["digits/ipm/4"]["seeds"] == 1
    runs["digits/none/4/oracle/seed1"] = entry(0.8, 0.9)
    assert not claims(rows(runs))["digits/ipm/4"]["holds"], "0.76 is below 95 % of 0.85"
    assert "FAILS: digits/ipm/4" in show(runs)
    assert below_local_only(table) == {"digits/ipm/4": True}
    assert "digits/ipm/4" not in spreads(table), "fedavg has one seed of two"
    runs["digits/ipm/4/fedavg/seed1"] = entry(0.1, 0.3)
    told = spreads(rows(runs))["digits/ipm/4"]
    assert (told["least"], told["its"], told["rules"]) == ("oracle", pytest.approx(0.05), 3)
    assert told["ours"] == pytest.approx((0.02 + 0.1) / 2)


def test_only_rules_with_all_seeds_of_a_row_are_compared():
    runs = {
        f"digits/ipm/4/{rule}/seed{seed}": entry(0.5, 0.5 + apart)
        for rule, apart, seeds in (
            ("lightyear", 0.2, (0, 1)), ("krum", 0.0, (0,)), ("median", 0.1, (0, 1)),
            ("fedavg", 0.1, (1, 0)),
        )
        for seed in seeds
    }  # fmt: skip
    runs["digits/none/4/oracle/seed0"] = entry(0.5, 0.5)

    table = rows(runs)

    assert complete(table["digits/ipm/4"]) == ["fedavg", "lightyear", "median"]
    told = spreads(table)["digits/ipm/4"]
    assert (told["rules"], told["its"]) == (3, pytest.approx(0.05)), "krum lacks a seed"
    assert told["least"] == "fedavg", "of two alike the first by name"


def test_a_claim_that_holds_in_the_mean_names_the_seeds_in_which_it_fails():
    runs = {
        "digits/ipm/6/lightyear/seed0": entry(0.5, 0.5),
        "digits/ipm/6/lightyear/seed1": entry(0.9, 0.9),
        "digits/none/0/local-only/seed0": entry(0.6, 0.6),
        "digits/none/0/local-only/seed1": entry(0.6, 0.6),
    }

    claim = claims(rows(runs))["digits/ipm/6"]

    assert (claim["holds"], claim["fails"]) == (True, ["seed0"])
    assert "bound 0.590; fails in seed0" in show(runs)


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


def test_images_are_halved_by_means_of_four_pixels(tmp_path):
    images = np.arange(2 * 4 * 6, dtype=np.uint8).reshape(2, 4, 6)
    np.savez(tmp_path / "a.npz", images=images, labels=[3, 4], writer=[7, 8], series=[0, 0])

    with np.load(write_writers(tmp_path / "a.npz", tmp_path / "b.npz")) as made:
        assert made["image"].shape == (2, 2, 3)
        assert made["image"][0, 0, 1] == np.rint((2 + 3 + 8 + 9) / 4)
        assert (made["label"].tolist(), made["site"].tolist()) == ([3, 4], [7, 8])


def test_the_least_recently_used_is_forgotten_first():
    memory, made = Memory(), []

    def get(key):
        return memory.get(key, lambda: made.append(key) or key)

    assert [get(key) for key in (0, *range(MOST_REMEMBERED), 0)] == [0, *range(MOST_REMEMBERED), 0]
    assert made == [*range(MOST_REMEMBERED)]
    get("one too many")
    get(0)
    assert made[-1] == "one too many"
    get(1)
    assert made[-1] == 1


def test_a_run_is_the_same_whatever_ran_before_it(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        image=rng.integers(0, 255, (96, 6, 6), dtype=np.uint8),
        label=np.arange(96) // 4 % 3,
        site=np.arange(96) % 4,
    )
    base = {
        **byzantine.TRAINING,
        "model.task": "image-classification",
        "model.source": "embedded:tiny-cnn",
        "model.trainable": "all",
        "data.source": str(tmp_path / "images.npz"),
        "federation.rounds": 2,
        "train.local-epochs": 1,
    }
    attacked = {**base, "faults.sites": "1,3", "faults.attack": "ipm", "lightyear.kernel": -1.0}
    rules = [RunConfig.from_flat({**attacked, "method": m}) for m in ("krum", "lightyear", "ditto")]

    used = Federation(RunConfig.from_flat(base))
    after = [used.run(config) for config in (*rules, *rules)]

    for number, config in enumerate(rules):
        alone = Federation(RunConfig.from_flat(base)).run(config)
        for again in (after[number], after[number + 3]):
            assert {**again, "cpu_seconds": 0} == {**alone, "cpu_seconds": 0}
        assert sorted(alone["accuracy"]) == ["0", "2"]
