from __future__ import annotations

from pathlib import Path

import pytest

from fedapp.cli.overrides import absolute_paths, read_overrides
from fedapp.config import RunConfig
from fedapp.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("method=fedavg", {"method": "fedavg"}),
        ("method='fedavg'", {"method": "fedavg"}),
        ("method = fedavg seed=7", {"method": "fedavg", "seed": 7}),
        ("train.learning-rate=1e-3", {"train.learning-rate": 0.001}),
        ("train.tf32=false", {"train.tf32": False}),
        ("lora.targets=query,value", {"lora.targets": "query,value"}),
        ('data.source="/a b/c=d.csv" seed=1', {"data.source": "/a b/c=d.csv", "seed": 1}),
        (r'data.text-column="a\"b"', {"data.text-column": 'a"b'}),
        (r"data.source='C:\x'", {"data.source": r"C:\x"}),
        ("name=007", {"name": "007"}),  # a text stays one, though it looks like a number
        ("name=true", {"name": "true"}),
        ("name=", {"name": ""}),
        ("  ", {}),
    ],
)
def test_pairs_are_typed_by_their_setting(option: str, expected: dict[str, object]) -> None:
    found = read_overrides([option])
    assert found == expected
    assert [type(v) for v in found.values()] == [type(v) for v in expected.values()]


def test_a_later_option_wins_and_files_mix_with_pairs(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("seed = 1\n[train]\nbatch-size = 4\ntf32 = false\n")
    second.write_text("train.batch-size = 5\n")

    found = read_overrides(["seed=9", str(first), str(second), "train.tf32=true"])

    assert found == {"seed": 1, "train.batch-size": 5, "train.tf32": True}


@pytest.mark.parametrize("option", ["fedavg", "seed=1 fedavg", "=3"])
def test_what_is_no_pair_is_named(option: str) -> None:
    with pytest.raises(ConfigError, match="write key=value"):
        read_overrides([option])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere/x\.toml"):
        read_overrides(["nowhere/x.toml"])


def test_a_value_of_the_wrong_type_ends_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"train\.batch-size.*many"):
        RunConfig.from_flat(read_overrides(["train.batch-size=many"]))


def test_relative_paths_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    flat = {"data.source": "x.csv", "model.source": "model", "output-dir": "o", "name": "n"}

    found = absolute_paths(flat, tmp_path)

    assert found == {
        "data.source": f"{tmp_path}/x.csv",
        "model.source": f"{tmp_path}/model",
        "output-dir": f"{tmp_path}/o",
        "name": "n",
    }


@pytest.mark.parametrize("key", ["data.source", "output-dir", "resume", "model.source"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("~nosuchuser/x", "begins with '~nosuchuser', but no account of that name"),
        ("a\0b", "holds a NUL character"),
    ],
)
def test_a_path_that_cannot_be_is_one_sentence(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        absolute_paths({key: value}, tmp_path)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


def test_a_settings_file_of_nobody_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no account of that name"):
        read_overrides(["~nosuchuser/s.toml"])


def test_names_that_are_no_paths_stay(tmp_path: Path) -> None:
    flat = {"data.source": "embedded:heart", "model.source": "org/bert", "resume": ""}
    assert absolute_paths(flat, tmp_path) == flat


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000, "{a=" * 50_000])
def test_a_value_that_no_parser_takes_is_text(value: str) -> None:
    assert read_overrides([f"train.batch-size={value}"]) == {"train.batch-size": value}
