"""``fedapp audit``: what was asked, refused and sent, and that nobody changed it since."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapp.audit import FILE
from fedapp.audit import verify as verify_log
from fedapp.cli.console import SentenceGroup, say
from fedapp.errors import ConfigError
from fedapp.paths import user_path

app = typer.Typer(
    cls=SentenceGroup, no_args_is_help=True, help="Logs of what was asked, refused and sent."
)


@app.callback()
def _group() -> None:
    """Keep `verify` a subcommand although it is the only one."""


@app.command()
def verify(
    log: Annotated[Path, typer.Argument(help="A log, or a site's state or run folder with one.")],
    head: Annotated[
        str, typer.Option(help="A digest noted earlier, which must be that of a line.")
    ] = "",
) -> None:
    """Check that no line of an audit log was altered, removed, added or moved.

    Lines cut off the end are only found with --head: note the digest that is printed elsewhere, on
    paper for instance.

    Exit codes: 0 unbroken; 2 no log there; 6 broken.

    Example: fedapp audit verify /var/lib/fedapp/audit.jsonl

    Next step: note the printed digest; the next check names it with --head.
    """
    path = user_path(log)
    path = path / FILE if path.is_dir() else path
    try:
        found = verify_log(path, head)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; name an audit log") from None
    say(f"{path}: {found.lines} lines, unbroken, {found.first or '-'} to {found.last or '-'}")
    for event, count in found.events.items():
        say(f"  {count:6d} {event}")
    say(f"Digest of the newest line: {found.head}")
    say("Next: note it elsewhere; a later check names it with --head.")
