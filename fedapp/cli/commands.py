"""The small commands: stop, report, export, version."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

import fedapp
from fedapp.cli import daemon
from fedapp.cli.console import say
from fedapp.cli.home import Home
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.paths import user_path
from fedapp.peft_format import CONFIG_FILE, load_peft, read_peft_config, save_peft
from fedapp.registry import load_half
from fedapp.report import write_report
from fedapp.results import RunFolder
from fedapp.tasks import TASKS

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
    source = folder.adapter
    if not (source / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{folder.path} holds no adapter yet; it is written when the run completes"
        )
    adapter = load_peft(source)
    card = source / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
    save_peft(adapter, to, read_peft_config(source), text)
    say(f"Wrote {to.resolve()}: {adapter.size} numbers, digest {adapter.digest()}")
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
    loader = TASKS[_task(folder)].loader(read_peft_config(folder.adapter))
    say(f'Next: {loader}.from_pretrained("{target}")')


def _task(folder: RunFolder) -> str:
    return RunConfig.from_flat(folder.read_config()["settings"]).model.task


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
