"""The small commands: stop, report, export, version."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

import fedapp
from fedapp.cli import daemon
from fedapp.cli.console import say
from fedapp.cli.home import Home
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.exported import is_exported, load_exported, save_exported
from fedapp.paths import user_path
from fedapp.peft_format import read_peft_config
from fedapp.registry import load_half
from fedapp.report import write_report
from fedapp.results import RunFolder
from fedapp.tasks import task_info
from fedapp.whole_format import WEIGHTS_FILE

# Loaded on demand: the coordinator's installation has neither the site's half nor torch.
_MERGE = "client_app.export:merge_into_base"
_PACKAGES = ("flwr", "ray", "torch", "transformers", "peft", "numpy")


def stop(app: Annotated[Path, typer.Argument(help="Folder of the app.")] = Path(".")) -> None:
    """End the Flower daemon that `fedapp run` started for this app, and no other process.

    A run that is in progress ends with it.

    Example: fedapp stop
    """
    ended = daemon.end(Home.of(user_path(app)))
    if ended is None:
        say("No daemon of this project is running.")
    else:
        say(f"Ended the daemon (process {ended.process.pid}, port {ended.port}).")
    say("Next: fedapp run starts a fresh one.")


def report(run: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Write report.html of a run anew; a run in progress gets a report of what is there.

    Example: fedapp report runs/latest
    """
    path = write_report(RunFolder.open(run).path)
    say(f"Wrote {path}")
    say("Next: open it in a browser; it needs no network.")


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    to: Annotated[Path | None, typer.Option(help="New folder for the adapter.")] = None,
    merged: Annotated[
        Path | None,
        typer.Option(help="New folder for the base model with the adapter added to its weights."),
    ] = None,
) -> None:
    """Copy the trained adapter as a folder that plain PEFT loads, after checking it.

    Of a run with model.trainable = "all" it is the state dict of all weights, as safetensors.
    With --merged the result is a whole model, for plain transformers.

    Example: fedapp export runs/latest --to my-adapter
    """
    folder = RunFolder.open(run)
    if to is None and merged is None:
        raise ConfigError("name a folder: --to DIR for the adapter, --merged DIR for a whole model")
    if to is not None:
        _export_adapter(folder, to)
    if merged is not None:
        _export_merged(folder, merged)


def _export_adapter(folder: RunFolder, to: Path) -> None:
    config, source = _config(folder), folder.adapter
    if not is_exported(config, source):
        raise ConfigError(
            f"{folder.path} holds no adapter yet; it is written when the run completes"
        )
    adapter = load_exported(config, source)
    card = source / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
    whole = config.model.trainable == "all"
    save_exported(config, adapter, to, {} if whole else read_peft_config(source), text)
    say(f"Wrote {to.resolve()}: {adapter.size} numbers, digest {adapter.digest()}")
    if whole:
        say(f'Next: safetensors.torch.load_model(base_model, "{to / WEIGHTS_FILE}")')
    else:
        say(f'Next: PeftModel.from_pretrained(base_model, "{to}")')


def _export_merged(folder: RunFolder, target: Path) -> None:
    try:
        merge_into_base = load_half(_MERGE)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--merged loads the base model, which needs {error.name}; run it where the site's "
            "half is installed (`pip install 'fedapp[site]'`)"
        ) from None
    say(f"Wrote {merge_into_base(folder.path, target)}")
    say(f"Next: {_next(folder, target)}")


def _next(folder: RunFolder, target: Path) -> str:
    """One line of Python that loads a whole model."""
    config = _config(folder)
    task = task_info(config)
    if task.on_images:
        told: dict[str, Any] = next(iter(folder.read_config()["sites"].values()), {})
        outputs = len(told.get("label_map", []))
        return f'client_app.image_nets.load_net("{target}", outputs={outputs})'
    whole = config.model.trainable == "all"
    peft_config = {} if whole else read_peft_config(folder.adapter)
    return f'{task.loader(peft_config)}.from_pretrained("{target}")'


def _config(folder: RunFolder) -> RunConfig:
    return RunConfig.from_flat(folder.read_config()["settings"])


def version() -> None:
    """Print the versions of fedapp and of what it computes with.

    Next step: add them to a bug report.

    Example: fedapp version
    """
    say(f"fedapp {fedapp.__version__} (Python {platform.python_version()})")
    for package in _PACKAGES:
        try:
            say(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            say(f"{package} is not installed")
