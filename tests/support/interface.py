"""The public interface as data: every setting and every command with its options.

``python tests/support/interface.py`` freezes the present one: it rewrites
``tests/unit/public_interface.json`` and the settings in ``pyproject.toml``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import typer

from fedapp.cli import app, toml
from fedapp.config import RunConfig, settings

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "tests" / "unit" / "public_interface.json"
_BLOCK = re.compile(r"(?<=\[tool\.flwr\.app\.config\]\n).*?(?=\n\n|\Z)", re.DOTALL)


def interface() -> dict[str, Any]:
    """Describe what users and scripts rely on; wording is free to change."""
    return {
        "settings": {
            s.key: {
                "default": list(s.default) if isinstance(s.default, tuple) else s.default,
                "unit": s.unit,
                "constraint": s.constraint,
            }
            for s in settings()
        },
        "commands": _commands(typer.main.get_command(app), ""),
    }


def settings_block() -> str:
    """Return what ``[tool.flwr.app.config]`` must hold."""
    return toml.lines(RunConfig().to_flat()).rstrip("\n")


def block_in(pyproject: str) -> str:
    """Return what ``[tool.flwr.app.config]`` holds."""
    match = _BLOCK.search(pyproject)
    assert match is not None
    return match.group()


def _commands(command: click.Command, path: str) -> dict[str, Any]:
    if isinstance(command, click.Group):
        found: dict[str, Any] = {}
        for name, inner in command.commands.items():
            found |= _commands(inner, f"{path} {name}".strip())
        return found
    return {path: {_name(p): _describe(p) for p in command.params if p.name != "help"}}


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return " ".join(sorted(parameter.opts, key=len))
    return parameter.name or ""


def _describe(parameter: click.Parameter) -> dict[str, Any]:
    return {
        "type": parameter.type.name,
        "required": parameter.required,
        "repeated": bool(getattr(parameter, "multiple", False)),
    }


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(interface(), indent=1) + "\n", encoding="utf-8")
    project = ROOT / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    project.write_text(_BLOCK.sub(lambda _: settings_block(), text), encoding="utf-8")
