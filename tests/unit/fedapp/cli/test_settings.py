from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fedapp.cli import toml
from fedapp.cli.settings import app_settings, resolve, run_folder, write_overrides
from fedapp.config import RunConfig, flatten
from fedapp.errors import CheckpointError, ConfigError
from fedapp.results import RunFolder


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    text = "[tool.flwr.app.config]\n" + toml.lines(RunConfig().to_flat())
    (folder / "pyproject.toml").write_text(text.replace("seed = 0", "seed = 5"))
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


def test_a_later_source_wins(app: Path, here: Path) -> None:
    assert resolve(app, [], {}, here).seed == 5
    assert resolve(app, ["seed=6"], {}, here).seed == 6
    assert resolve(app, ["seed=6"], {"seed": 7}, here).seed == 7
    assert resolve(app, ["seed=6"], {"seed": None}, here).seed == 6


def test_a_run_has_an_absolute_folder_of_its_own(app: Path, here: Path) -> None:
    config = resolve(app, [], {"method": "svd"}, here)
    assert run_folder(config).parent == here / "runs"
    assert run_folder(config).name.startswith("svd-20")

    run_folder(config).mkdir(parents=True)
    again = resolve(app, [], {"method": "svd"}, here)
    assert run_folder(again) != run_folder(config)


def test_a_taken_name_is_refused_before_anything_starts(app: Path, here: Path) -> None:
    taken = here / "runs" / "mine"
    taken.mkdir(parents=True)
    (taken / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"mine exists; choose another --name"):
        resolve(app, [], {"name": "mine"}, here)


def test_a_resumed_run_keeps_its_settings(app: Path, here: Path) -> None:
    old = RunConfig.from_flat(
        {"output-dir": str(here), "name": "old", "lora.rank": 3, "lora.targets": "a,b"}
    )
    folder = RunFolder.create(old)
    folder.write_config(old, {})

    config = resolve(app, ["federation.rounds=9"], {"resume": "old"}, here)

    assert run_folder(config) == here / "old"
    assert (config.lora.rank, config.lora.targets, config.seed) == (3, ("a", "b"), 0)
    assert config.federation.rounds == 9


@pytest.mark.parametrize("replies", [3, 0])
def test_a_run_may_be_resumed_with_fewer_replies(app: Path, here: Path, replies: int) -> None:
    """Also with the app's own value, which an override cannot express by its absence."""
    old = RunConfig.from_flat(
        {"output-dir": str(here), "name": "old", "federation.min-replies": 4, "seed": 2}
    )
    RunFolder.create(old)
    config = resolve(app, [f"federation.min-replies={replies}"], {"resume": "old"}, here)
    path = app / "overrides.toml"

    write_overrides(config, app, path)

    flower = RunConfig.from_flat({**app_settings(app), **parse_config_args([str(path)])})
    assert flower == config
    assert (flower.federation.min_replies, flower.seed) == (replies, 2)
    assert flower.resume == str(here / "old")


def test_the_name_of_a_run_that_never_began_is_free(app: Path, here: Path) -> None:
    folder = RunFolder.create(resolve(app, [], {"name": "mine"}, here))
    folder.write_status("failed", "a site is missing", 5)

    assert run_folder(resolve(app, [], {"name": "mine"}, here)) == folder.path


def test_resuming_nothing_is_an_error(app: Path, here: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve(app, [], {"resume": "absent"}, here)


@pytest.mark.parametrize(
    "content", ['{"settings": 3', "{}", "[]", '{"settings": 3}', "[" * 100_000]
)
def test_a_resumed_run_with_a_broken_record_is_an_error(
    app: Path, here: Path, content: str
) -> None:
    here.mkdir()
    (here / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        resolve(app, [], {"resume": str(here)}, here)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "there is no"), ("[project]\n", r"no \[tool.flwr.app\]"), ("[", "cannot be read")],
)
def test_a_folder_without_an_app_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError, match=words):
        app_settings(tmp_path)


def test_flower_reads_the_same_settings_from_the_overrides(app: Path, here: Path) -> None:
    tricky = r"""a 'b' "c" =d \ ä #e"""
    config = resolve(app, [], {"data.text-column": tricky, "train.learning-rate": 1e-05}, here)
    path = app / "overrides.toml"

    write_overrides(config, app, path)

    flower = {**app_settings(app), **parse_config_args([str(path)])}
    assert RunConfig.from_flat(flower) == config
    assert set(flatten(tomllib.loads(path.read_text()))) == {
        "data.text-column", "train.learning-rate", "output-dir", "name",
    }  # fmt: skip


def test_a_folder_for_runs_that_cannot_be_made_is_refused(app: Path, here: Path) -> None:
    here.mkdir()
    (here / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another --output-dir"):
        resolve(app, [], {"output-dir": "file/runs"}, here)
