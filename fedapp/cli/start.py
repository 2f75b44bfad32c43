"""``fedapp superlink``, ``superexec`` and ``supernode``: Flower's programs, never without TLS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedapp.cli.console import say
from fedapp.cli.home import shared_folder
from fedapp.cli.provision import FOLDER, Provisions
from fedapp.config_join import JoinConfig, read_join
from fedapp.paths import user_path
from fedapp.provision.folder import Folder
from fedapp.provision.start import (
    PROMPT,
    become,
    executor_command,
    superlink_command,
    supernode_command,
)

Flower = Annotated[
    Path | None, typer.Option("--home", help="Flower's own folder; default: below ~/.fedapp.")
]


def superlink(
    folder: Provisions = Path(FOLDER),
    listen: Annotated[str, typer.Option(help="HOST:PORT.")] = "127.0.0.1:8000",
    database: Annotated[Path, typer.Option(help="Its file; survives a restart.")] = Path(
        "superlink.db"
    ),
    home: Flower = None,
) -> None:
    """Start the SuperLink with TLS and authenticated SuperNodes, after checking every file.

    There is no way to start it without. Its control API takes runs from whoever reaches the port:
    let hospitals reach the fleet API only (deploy/nginx.conf). Runs are executed by `fedapp
    superexec`, started beside it, so that they survive a restart of the SuperLink.

    Exit codes: 2 a file is missing, wrong, expired or open to others; else Flower's own.

    Example: fedapp superlink --from provisioned --listen 0.0.0.0:8000

    Next step: fedapp enrol, fedapp superexec.
    """
    command = superlink_command(_folder(folder), listen, user_path(database).absolute())
    say(f"SuperLink on {listen}: TLS, authenticated SuperNodes, files of {folder}")
    become(command, _home(home, "superlink"), os.environ)


def superexec(
    superlink: Annotated[str, typer.Option(help="HOST:PORT, a name of its certificate.")],
    folder: Provisions = Path(FOLDER),
    home: Flower = None,
) -> None:
    """Start what executes the coordinator's half of runs, after checking every file.

    Exit codes: 2 a file is missing, wrong, expired or open to others; else Flower's own.

    Example: fedapp superexec --superlink 127.0.0.1:8000

    Next step: flwr run.
    """
    command = executor_command(_folder(folder), superlink)
    say(f"Executor of runs for the SuperLink at {superlink}")
    become(command, _home(home, "superexec"), os.environ)


def supernode(
    config: Annotated[Path, typer.Option("--config", help="join.toml of the kit.")] = Path(
        "join.toml"
    ),
    home: Flower = None,
) -> None:
    """Start a hospital's SuperNode with TLS and its own key, after checking every file.

    There is no way to start it without. Its connection is outwards only.

    Exit codes: 2 a file is missing, wrong, expired or open to others; else Flower's own.

    Example: fedapp supernode --config join.toml

    Next step: wait for the coordinator to start a run.
    """
    become_supernode(read_join(user_path(config).absolute()), home)


def become_supernode(join: JoinConfig, home: Path | None) -> NoReturn:
    """Check a SuperNode's files and let it take this process's place."""
    command = supernode_command(join)
    say(f"SuperNode of {join.site} for the SuperLink at {join.superlink}")
    become(command, _home(home, f"supernode-{join.site}"), {**PROMPT, **os.environ})


def _folder(folder: Path) -> Folder:
    return Folder(user_path(folder).absolute())


def _home(home: Path | None, name: str) -> Path:
    return user_path(home).absolute() if home is not None else shared_folder() / name
