"""``fedapp config``: look at the settings."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli import toml
from fedapp.cli.console import SentenceGroup, say
from fedapp.cli.overrides import read_overrides
from fedapp.cli.settings import app_settings
from fedapp.config import RunConfig, Setting, settings

app = typer.Typer(cls=SentenceGroup, no_args_is_help=True, help="Look at the settings.")

Folder = Annotated[
    Path, typer.Argument(metavar="[APP]", help="Folder of the app.", show_default=True)
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="Settings: 'key=value ...' or a .toml file."),
]


@app.command()
def show(folder: Folder = Path("."), config: Changes = None) -> None:
    """Print every setting as it would be used: value, unit, bounds, meaning.

    Without an app in the folder the defaults are shown.

    Example: fedapp config show -c "method=svd lora.rank=4"
    """
    section = ""
    for setting in settings(_resolve(folder, config)):
        head = setting.key.rpartition(".")[0]
        if head != section:
            section = head
            say("")
        say(_describe(setting))
    say('\nNext: fedapp run -c "KEY=VALUE ..."')


@app.command()
def schema() -> None:
    """Print the JSON schema of the settings.

    Next step: give it to an editor, or validate your own settings file with it.

    Example: fedapp config schema > settings.schema.json
    """
    say(json.dumps(RunConfig.model_json_schema(by_alias=True), indent=2))


@app.command("toml")
def toml_(folder: Folder = Path("."), config: Changes = None) -> None:
    """Print the settings as TOML: a file for -c, or [tool.flwr.app.config] of pyproject.toml.

    Without an app in the folder the defaults are changed.

    Next step: edit the file and give it to `fedapp run -c FILE.toml`.

    Example: fedapp config toml -c method=svd > svd.toml
    """
    say(toml.lines(_resolve(folder, config).to_flat()).rstrip("\n"))


def _resolve(folder: Path, options: list[str] | None) -> RunConfig:
    base = app_settings(folder) if (folder / "pyproject.toml").exists() else {}
    return RunConfig.from_flat({**base, **read_overrides(options or [])})


def _describe(setting: Setting) -> str:
    value = ",".join(setting.value) if isinstance(setting.value, tuple) else setting.value
    default = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    line = f"{setting.key} = {toml.literal(value)}{' ' + setting.unit if setting.unit else ''}"
    if value != default:
        line += f"    (default {toml.literal(default)})"
    bounds = f" [{setting.constraint}]" if setting.constraint else ""
    meaning = textwrap.fill(
        setting.description + bounds, 96, initial_indent="    ", subsequent_indent="    "
    )
    return f"{line}\n{meaning}"
