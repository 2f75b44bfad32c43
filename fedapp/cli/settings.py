"""The settings of a run as the command line resolves them, and as it hands them to Flower."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapp.cli import toml
from fedapp.cli.overrides import absolute_paths, read_overrides
from fedapp.config import RunConfig, Scalar, flatten
from fedapp.errors import ConfigError, DataError
from fedapp.results import RunFolder, is_free


def app_settings(app: Path) -> dict[str, Scalar]:
    """Return ``[tool.flwr.app.config]`` of the app in folder ``app``.

    Raises
    ------
    ConfigError
        If there is no such app.
    """
    path = app / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        return flatten(project["tool"]["flwr"]["app"].get("config", {}))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; name the folder of the app") from None
    # Not TOML, not UTF-8, a number of thousands of digits, absurd nesting
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} has no [tool.flwr.app]; name the folder of the app") from None


def resolve(
    app: Path, options: Sequence[str], named: Mapping[str, Scalar | None], here: Path
) -> RunConfig:
    """Combine the app's settings, those of a resumed run, ``-c`` options and named options.

    A later one wins. Relative paths become absolute: the app's from its folder, the others from
    ``here``. A new run gets a name, and ``runs`` below ``here`` unless ``output-dir`` is set.

    Raises
    ------
    ConfigError
        If a setting is unknown or out of range, or the run folder is taken.
    CheckpointError
        If the run to resume is not there.
    DataError
        If ``data.source`` names a file that is not there.
    """
    given = read_overrides(options)
    given |= {key: value for key, value in named.items() if value is not None}
    given = absolute_paths(given, here)
    base = absolute_paths(app_settings(app), app)
    if given.get("resume"):
        base |= _resumed(Path(str(given["resume"])))
    flat = base | given
    if not flat.get("output-dir"):
        flat["output-dir"] = str(here / "runs")
    config = RunConfig.from_flat(flat)
    _check_data(config.data.source)
    _check_writable(Path(config.resume or config.output_dir))
    if config.resume:
        return config
    if not config.name:
        # Seconds alone could meet the folder of a run that was started in the same second.
        name = f"{config.method}-{time.strftime('%Y%m%d-%H%M%S')}"
        config = config.with_changes({"name": _free(Path(config.output_dir), name)})
    elif not is_free(taken := run_folder(config)):
        raise ConfigError(
            f"the run folder {taken} exists; choose another --name, or continue it with "
            f"--resume {taken}"
        )
    return config


def run_folder(config: RunConfig) -> Path:
    """Return where a resolved run writes."""
    if config.resume:
        return Path(config.resume)
    return Path(config.output_dir) / config.name


def write_overrides(config: RunConfig, app: Path, path: Path) -> None:
    """Write the settings that differ from the app's own as a TOML file for ``flwr run -c``.

    A file needs no quoting, whereas Flower splits a command-line value at quotes and spaces.
    """
    own = app_settings(app)
    # What is neither in the app nor changed is left out: Flower refuses keys the app lacks.
    changed = {key: value for key, value in config.to_flat().items() if own.get(key) != value}
    defaults = RunConfig().to_flat()
    changed = {k: v for k, v in changed.items() if k in own or v != defaults[k]}
    path.write_text(toml.lines(changed), encoding="utf-8")


def _resumed(path: Path) -> dict[str, Scalar]:
    folder = RunFolder.open(path)
    folder.check_adapter()
    return {**flatten(folder.read_config()["settings"]), "resume": str(folder.path)}


def _check_data(source: str) -> None:
    """Find out now what every simulated site would only find out after Flower's start."""
    if not source.startswith("embedded:") and not Path(source).exists():
        raise DataError(f"data file not found: {source}; check data.source")


def _check_writable(folder: Path) -> None:
    """Find out now what the run would only find out after Flower's start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} for run folders cannot be created ({error.strerror}); choose "
            "another --output-dir"
        ) from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"the folder {folder} is not writable; choose another --output-dir")


def _free(root: Path, name: str) -> str:
    number, candidate = 1, name
    while (root / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate
