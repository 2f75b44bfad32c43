"""What the command line says itself: plain lines, and errors as one sentence."""

from __future__ import annotations

from typing import Any

import click
import typer
from typer.core import TyperGroup

from fedapp.errors import FedappError


def say(text: str) -> None:
    """Print one line to standard output at once."""
    typer.echo(text)


def fail(sentence: str, next_step: str = "") -> None:
    """Print an error sentence, and what to do next, to standard error."""
    typer.echo(f"error: {sentence}", err=True)
    if next_step:
        typer.echo(f"next: {next_step}", err=True)


def warn(sentence: str) -> None:
    """Print a warning to standard error: something is amiss, and the command goes on."""
    typer.echo(f"warning: {sentence}", err=True)


class SentenceGroup(TyperGroup):
    """A command group that ends a `FedappError` with its sentence and its exit code.

    A file that cannot be read or written, on a full disk for instance, is a sentence too.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FedappError as error:
            fail(str(error))
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            if error.filename is None:
                raise  # not of a file: something that nobody thought of
            # Of a file that was to replace another, the other one is what the user knows.
            name = error.filename2 or error.filename
            fail(f"{name}: {error.strerror}; mend this and try again")
            raise typer.Exit(1) from None
