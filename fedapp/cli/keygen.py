"""``fedapp site keygen``: a hospital's own keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.console import say
from fedapp.paths import user_path
from fedapp.provision.keys import make_keys


def keygen(
    name: Annotated[str, typer.Option(help="The hospital's, as in the coordinator's file.")],
    to: Annotated[Path, typer.Option(help="Folder for keys and request.")] = Path("secrets"),
) -> None:
    """Make this hospital's private keys, which stay here, and a request to have them certified.

    Keys that are there are used, never replaced.

    Example: fedapp site keygen --name Basel --to secrets

    Next step: send request.pem to the coordinator and compare the fingerprint by telephone.
    """
    made = make_keys(user_path(to).absolute(), name)
    say(f"{'Made' if made.new else 'Kept'} the keys of {name} in {made.request.parent}")
    say(f"Request: {made.request}")
    say(f"  fingerprint {made.fingerprint}")
    say("Next: send the request to the coordinator, and read out the fingerprint by telephone.")
