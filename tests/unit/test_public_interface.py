"""What users' scripts rely on does not change by accident.

After a deliberate change: ``python tests/support/interface.py``, and a line in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import tomllib

import click
import pytest
import typer
from interface import FROZEN, ROOT, block_in, interface, settings_block
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.config import RunConfig, flatten
from fedapp.ntk import agreement

FIRST = "python tests/support/interface.py freezes a deliberate change"


@pytest.fixture(scope="module")
def frozen() -> dict[str, dict[str, object]]:
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def test_the_settings_are_the_frozen_ones(frozen: dict[str, dict[str, object]]) -> None:
    assert json.loads(json.dumps(interface()["settings"])) == frozen["settings"], FIRST


def test_the_command_line_is_the_frozen_one(frozen: dict[str, dict[str, object]]) -> None:
    assert interface()["commands"] == frozen["commands"], FIRST


def test_the_commands_are_those_of_the_design() -> None:
    names = {"run", "stop", "config show", "config schema", "config toml", "report", "export"}
    assert names <= set(interface()["commands"])


def test_the_agreement_is_called_with_two_matrices_of_features() -> None:
    signature = inspect.signature(agreement, eval_str=True)
    assert list(signature.parameters) == ["features_i", "features_j"]
    assert signature.return_annotation is float


def test_pyproject_holds_every_setting_with_its_default() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stored = flatten(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])

    assert stored == RunConfig().to_flat(), FIRST
    assert {k: type(v) for k, v in stored.items()} == {
        k: type(v) for k, v in RunConfig().to_flat().items()
    }
    assert block_in(text) == settings_block(), FIRST


def test_config_toml_prints_what_pyproject_holds() -> None:
    printed = CliRunner().invoke(app, ["config", "toml"]).stdout
    assert printed.strip() == block_in((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(interface()["commands"]))
def test_every_command_helps_with_an_example_and_says_what_is_next(path: str) -> None:
    command = typer.main.get_command(app)
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.commands[name]
    text = command.help or ""

    assert f"Example: fedapp {path}" in text
    result = CliRunner().invoke(app, [*path.split(), "--help"])
    assert result.exit_code == 0
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts} is not explained"


def test_the_schema_names_every_setting() -> None:
    schema = json.loads(CliRunner().invoke(app, ["config", "schema"]).stdout)
    for key in RunConfig().to_flat():
        section, dot, name = key.partition(".")
        properties = schema["properties"]
        if dot:
            reference = properties[section]["$ref"].rpartition("/")[2]
            properties, section = schema["$defs"][reference]["properties"], name
        assert properties[section]["description"]
