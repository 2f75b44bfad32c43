"""A TOML file of settings as a section, or one sentence about what is wrong with it."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import ValidationError

from fedapp.config_section import Section
from fedapp.errors import ConfigError
from fedapp.small_file import read_small
from fedapp.text import clean, shown

LONGEST_FILE = 2**20  # bytes

Model = TypeVar("Model", bound=Section)


def read_section(path: Path, model: type[Model]) -> Model:
    """Read and validate a file.

    Raises
    ------
    ConfigError
        If it is missing, unreadable, or has an unknown or impossible setting; it names the key, and
        for an unknown one the nearest.
    """
    data = read_small(path, LONGEST_FILE, "file", ConfigError)
    try:
        return model.model_validate(tomllib.loads(data.decode()))
    except ValidationError as error:
        _refuse(path, model, error)
    # Not TOML, not UTF-8, a number of thousands of digits, absurd nesting
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {clean(str(error), 200)}") from None


def _refuse(path: Path, model: type[Section], error: ValidationError) -> NoReturn:
    found = error.errors(include_url=False)
    # A slip in a name that is needed is an unknown setting and a missing one.
    first = min(found, key=lambda one: one["type"] != "extra_forbidden")
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # settings that contradict each other
        raise ConfigError(f"{path}: {message}") from None
    *above, last = first["loc"]
    key = ".".join(clean(str(part).replace("_", "-")) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(last), _known(model, above), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else "; leave it out"
        raise ConfigError(f"{path}: unknown setting '{key}'{hint}") from None
    if first["type"] == "missing":
        raise ConfigError(f"{path}: setting '{key}' is missing; {_meaning(model, first['loc'])}")
    raise ConfigError(f"{path}: setting '{key}': {message}, got {shown(first['input'])}") from None


def _meaning(model: type[Section], location: tuple[Any, ...]) -> str:
    field = _section(model, list(location[:-1])).model_fields[str(location[-1]).replace("-", "_")]
    return f"it is {field.description}"


def _known(model: type[Section], above: list[Any]) -> list[str]:
    fields = _section(model, above).model_fields
    return [field.alias or name for name, field in fields.items()]


def _section(model: type[Section], above: list[Any]) -> type[Section]:
    """Return the section at a place within ``model``; places within lists are passed over."""
    for part in above:
        field = model.model_fields.get(str(part).replace("-", "_"))
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), model)
    return model
