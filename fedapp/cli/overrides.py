"""The ``-c`` option: ``key=value`` pairs or a TOML file, typed by the setting they change."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapp.config import RunConfig, Scalar, read_toml
from fedapp.errors import ConfigError
from fedapp.paths import user_path
from fedapp.text import clean

_PAIR = re.compile(r"""\s*([^\s=]+)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s]*)""")
_PATHS = ("data.source", "model.source", "output-dir", "resume")


def read_overrides(options: Sequence[str]) -> dict[str, Scalar]:
    """Return the settings named by the ``-c`` options; a later one wins.

    Unlike Flower's own parser this accepts a text without quotes (``method=fedavg``), several TOML
    files, and files mixed with pairs.

    Raises
    ------
    ConfigError
        If an option is neither ``key=value`` pairs nor a readable ``.toml`` file.
    """
    types = {key: type(value) for key, value in RunConfig().to_flat().items()}
    flat: dict[str, Scalar] = {}
    for option in options:
        if option.endswith(".toml") and "=" not in option:
            flat.update(read_toml(user_path(option)))
        else:
            flat.update(_pairs(option, types))
    return flat


def absolute_paths(flat: Mapping[str, Scalar], folder: Path) -> dict[str, Scalar]:
    """Return ``flat`` with relative paths made absolute, seen from ``folder``.

    The run is executed elsewhere, so a relative path would point at nothing there. A model source
    is a path only if such a folder exists; else it is a hub name.
    """
    return {key: _absolute(key, value, folder) for key, value in flat.items()}


def _absolute(key: str, value: Scalar, folder: Path) -> Scalar:
    if key not in _PATHS or not isinstance(value, str) or not value:
        return value
    if value.startswith("embedded:"):
        return value
    path = folder / user_path(value)
    if key == "model.source" and not path.is_dir():
        return value
    return str(path.resolve())


def _pairs(option: str, types: Mapping[str, type]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    position = 0
    text = option.rstrip()
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            rest = clean(text[position:].strip())
            raise ConfigError(
                f"'{rest}' is not a setting; write key=value, for example "
                '-c "method=fedavg train.batch-size=8", put a value with spaces in quotes, '
                "as in \"data.source='my notes.csv'\", or name a .toml file"
            )
        key, raw = match.groups()
        found[key] = _value(raw, types.get(key, str))
        position = match.end()
    return found


def _value(raw: str, kind: type) -> Scalar:
    quoted = raw[:1] in {"'", '"'}
    if kind is str and not quoted:
        return raw
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    # Not TOML, a number of thousands of digits, absurd nesting
    except (ValueError, RecursionError):
        return raw  # the settings' own check says what is wrong with it
    return value if isinstance(value, bool | int | float | str) else raw
