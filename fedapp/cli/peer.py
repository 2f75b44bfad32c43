"""``fedapp peer``: a site in the gossip network, without any server."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedapp.config_peer import load_peer
from fedapp.paths import user_path

_QUIET = {
    "GRPC_VERBOSITY": "NONE",  # what is worth knowing comes as an error, and is said in a sentence
    "MALLOC_ARENA_MAX": "2",  # glibc would keep memory for every thread
}


def peer(
    config: Annotated[Path, typer.Option("--config", help="The site's file, TOML.")],
) -> None:
    """Run this site's node: answer the peers, keep and forward their updates, say who is alive.

    With settings = "FILE" in its file the site trains: every round it publishes its own model and
    mixes it with those of the neighbours that it believes. It ends after the last one; a start
    after a kill goes on from there. Otherwise it runs until SIGTERM or Ctrl-C, and then ends within
    10 s with exit code 0. Settings of the file: name, consortium, certificate, key, authority,
    store, listen, settings, state, and [gossip].

    Exit codes: 0 ended as asked; 2 settings or certificates; 1 anything else.

    Example: fedapp peer --config site.toml

    Next step: the other sites start theirs; each prints who is alive.
    """
    path = user_path(config).absolute()
    start = load_peer(path)
    environment = {**_QUIET, **os.environ}
    # The command line's own libraries would be most of what an idle node keeps in memory. The file
    # has no name, and goes with the process that this one becomes.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(start.to_json())
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        module = "client_app.peer" if start.settings_file else "fedapp.gossip"
        command = [sys.executable, "-P", "-m", module, str(file.fileno())]
        os.execve(sys.executable, command, environment)  # noqa: S606
