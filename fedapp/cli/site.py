"""``fedapp site``: what a hospital's operator does."""

from __future__ import annotations

import typer

from fedapp.cli.console import SentenceGroup
from fedapp.cli.keygen import keygen

app = typer.Typer(cls=SentenceGroup, no_args_is_help=True, help="A hospital's own commands.")
app.command()(keygen)
