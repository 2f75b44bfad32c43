import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from client_app.data import SiteData, load_site, load_sites, load_usable_sites
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DataError

Row = tuple[str, str, str]
Config = Callable[..., RunConfig]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Write (text, label, site) rows to a file and return the settings that read it."""

    def build(rows: list[Row], **changes: object) -> RunConfig:
        path = tmp_path / "records.jsonl"
        path.write_text(
            "\n".join(json.dumps({"text": t, "label": y, "site": s}) for t, y, s in rows)
        )
        keys = {key.replace("__", "."): value for key, value in changes.items()}
        keys = {key.replace("_", "-"): value for key, value in keys.items()}
        return RunConfig.from_flat({"data.source": str(path), **keys})  # type: ignore[dict-item]

    return build


def rows(site: str, n: int = 20) -> list[Row]:
    return [(f"{site} patient {i}", "yes" if i % 2 else "no", site) for i in range(n)]


def test_sites_labels_and_splits(config: Config) -> None:
    sites = load_sites(config(rows("South") + rows("North", 10)))

    assert list(sites) == ["North", "South"]
    south = sites["South"]
    assert south.label_map == ["no", "yes"]
    assert {name: len(part) for name, part in south.splits.items()} == {
        "train": 12,
        "validation": 4,
        "test": 4,
    }
    records = list(chain.from_iterable(south.splits.values()))
    assert sorted((r["text"], r["label"]) for r in records) == sorted(
        (text, int(label == "yes")) for text, label, _ in rows("South")
    )


@pytest.mark.parametrize("partition", ["natural", "iid", "dirichlet"])
def test_one_site_alone_is_loaded_as_with_the_others(config: Config, partition: str) -> None:
    settings = config(rows("A") + rows("B"), data__partition=partition, data__sites=2)
    together = load_sites(settings)

    assert load_usable_sites(settings) == together
    for name, data in together.items():
        assert load_site(settings, name) == data


def test_the_seed_of_the_run_draws_the_splits(config: Config) -> None:
    one, two = (load_site(config(rows("A"), seed=seed), "A") for seed in (0, 1))

    assert one.splits["test"] != two.splits["test"]
    assert load_site(config(rows("A")), "A").splits == one.splits


def test_dropped_repeats_are_counted_where_they_were(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    extra = [
        ("A patient 0", "yes", "A"),
        (" B  patient 1 ", "yes", "A"),
        ("A patient 3", "yes", "B"),
    ]

    sites = load_sites(config(rows("A") + rows("B") + extra))

    # How many have another label is a number of labels: it stays at the site.
    assert sites["A"].notes == ["2 records that repeat an earlier one dropped at this site"]
    assert "site A: 1 of the dropped records have another label" in caplog.text
    assert sites["B"].notes == ["1 record that repeats an earlier one dropped at this site"]
    assert sum(len(part) for data in sites.values() for part in data.splits.values()) == 40


def test_repeats_are_refused_on_request_without_showing_them(config: Config) -> None:
    settings = config([*rows("A"), ("A patient 2", "no", "A")], data__duplicates="refuse")

    with pytest.raises(DataError, match=r"site A: .*row 21 repeats row 3, and 1 rows") as caught:
        load_sites(settings)

    assert "patient" not in str(caught.value)


def test_a_site_that_is_a_copy_of_another_has_zero_examples(config: Config) -> None:
    copy = [(text, label, "B") for text, label, _ in rows("A")]

    with pytest.raises(DataError, match=r"site B: zero examples.*all 20 of its records repeat"):
        load_sites(config(rows("A") + copy))


def test_a_bad_site_does_not_stop_a_good_one(config: Config) -> None:
    settings = config(rows("A") + [(f"B {i}", "yes", "B") for i in range(20)])

    assert load_site(settings, "A").site == "A"
    with pytest.raises(DataError, match="site B: the training records all carry one label"):
        load_site(settings, "B")
    with pytest.raises(DataError, match="site B"):
        load_sites(settings)
    usable = load_usable_sites(settings)
    assert isinstance(usable["A"], SiteData)
    assert isinstance(usable["B"], DataError)


def test_one_class_can_be_allowed(config: Config) -> None:
    settings = config(
        rows("A") + [(f"B {i}", "yes", "B") for i in range(20)], data__one_class="allow"
    )

    assert {r["label"] for r in load_site(settings, "B").splits["train"]} == {1}


def test_a_label_outside_the_map_names_site_and_row(config: Config) -> None:
    settings = config([*rows("A"), ("odd one", "maybe", "A")], data__labels="no,yes")

    with pytest.raises(DataError, match=r"site A: .*row 21: a value of 5 characters is not in"):
        load_sites(settings)


def test_one_site_alone_answers_for_every_row_with_its_own_name(config: Config) -> None:
    settings = config([*rows("A"), (" ", "yes", "Muster, Maria")], data__labels="no,yes")

    with pytest.raises(DataError, match=r"site A: .*row 21: expected text, got nothing"):
        load_site(settings, "A")


def test_a_label_outside_the_map_does_not_stop_the_other_sites(config: Config) -> None:
    settings = config([*rows("A"), *rows("B"), ("odd", "maybe", "B")], data__labels="no,yes")

    found = load_usable_sites(settings)

    assert found["A"] == load_site(settings, "A") == load_site(config(rows("A")), "A")
    assert str(found["B"]).startswith("site B: ")
    assert "row 41: a value of 5 characters is not in data.labels" in str(found["B"])


def test_labels_that_must_not_be_found_are_asked_for(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"data\.labels is empty"):
        load_site(config(rows("A")), "A", find_labels=False)
    named = config(rows("A"), data__labels="no,yes")
    assert load_site(named, "A", find_labels=False) == load_site(named, "A")


def test_a_site_with_a_comma_in_its_name_cannot_be_held_out(config: Config) -> None:
    records = rows("A") + rows("St. Mary, London")

    held_out = config(records, **{"federation.held-out": "St. Mary, London"})
    with pytest.raises(DataError, match=r"column 'site', row 21: .* holds a comma, so federation"):
        load_sites(held_out)

    assert len(load_sites(config(records))) == 2
    assert len(load_sites(config(records, **{"federation.held-out": "A"}))) == 2


def test_a_site_too_small_for_three_splits_is_named(config: Config) -> None:
    with pytest.raises(DataError, match="site B: the validation split is empty"):
        load_sites(config(rows("A") + rows("B", 2)))


def test_an_empty_file_is_one_sentence(config: Config) -> None:
    with pytest.raises(DataError, match="holds no records"):
        load_sites(config([]))


def test_an_unknown_site_is_not_told_the_others(config: Config) -> None:
    with pytest.raises(DataError, match=r"site Nort: .*no records of this.*of 2 others") as caught:
        load_site(config(rows("North") + rows("South")), "Nort")

    assert "North" not in str(caught.value)


def test_an_unknown_embedded_source_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'embedded:heart'"):
        load_sites(RunConfig.from_flat({"data.source": "embedded:hart"}))


def test_the_most_records_per_site_is_kept(config: Config) -> None:
    sites = load_sites(config(rows("A", 60) + rows("B", 10), data__max_examples=20))

    assert {s: sum(map(len, d.splits.values())) for s, d in sites.items()} == {"A": 20, "B": 10}


def test_a_broken_partition_is_caught_by_content(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(*_: object) -> dict[str, list[int]]:
        return {"A": list(range(20)), "B": list(range(19, 40))}

    monkeypatch.setattr("client_app.data.load.deal", leaky)

    with pytest.raises(DataError, match="no record is in two sites, got 1 in two of them"):
        load_sites(config(rows("A") + rows("B")))


def test_a_broken_split_is_caught_by_content(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(*_: object, **__: object) -> dict[str, list[int]]:
        return {"train": list(range(15)), "validation": [15, 16], "test": [14, 17]}

    monkeypatch.setattr("client_app.data.load.stratified_splits", leaky)

    with pytest.raises(DataError, match=r"site A: .*1 in both 'train' and 'test'"):
        load_sites(config(rows("A")))
