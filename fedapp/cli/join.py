"""``fedapp site join``: the last step of a hospital's ladder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedapp.cli.console import say
from fedapp.cli.half import half
from fedapp.cli.site_steps import table
from fedapp.cli.start import Flower, become_supernode
from fedapp.config_join import read_join
from fedapp.paths import user_path
from fedapp.preflight.finding import Finding, failed

_CHECK = "client_app.preflight.join:check_join"


def join(
    config: Annotated[Path, typer.Option("--config", help="join.toml of the kit.")] = Path(
        "join.toml"
    ),
    home: Flower = None,
) -> None:
    """Look once more at the service beside and the way to the coordinator; then join.

    What follows is this hospital's SuperNode, as `fedapp supernode` starts it: it runs until
    SIGTERM or Ctrl-C. If something failed it is not started.

    Exit codes: 1 something failed; 2 a file is missing, wrong or open to others; else Flower's own.

    Example: fedapp site join --config join.toml

    Next step: the coordinator starts a run; `fedapp audit verify` shows what was asked and sent.
    """
    settings = read_join(user_path(config).absolute())
    findings: list[Finding] = list(half(_CHECK)(settings))
    Console().print(table(findings))
    if failed(findings):
        say("Next: mend what failed. Nothing was started.")
        raise typer.Exit(1)
    become_supernode(settings, home)
