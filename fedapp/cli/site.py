"""``fedapp site``: what a hospital's operator runs."""

from __future__ import annotations

from pathlib import Path

import typer

from fedapp.cli import site_steps
from fedapp.cli.console import SentenceGroup, say
from fedapp.cli.half import half
from fedapp.cli.join import join
from fedapp.cli.keygen import keygen
from fedapp.cli.site_steps import PeerFileOption, SiteFileOption
from fedapp.config_site import load_site_file
from fedapp.paths import user_path

app = typer.Typer(
    cls=SentenceGroup,
    no_args_is_help=True,
    help="A hospital's own site: its service, and the steps before it joins.",
)

# Loaded on demand: the coordinator's installation has neither the site's half nor torch.
_SERVE = "client_app.service.serve:serve"
_CALL_OFF = "client_app.service.cancel:call_off"


@app.command()
def serve(config: SiteFileOption = Path("site.toml"), peer: PeerFileOption = None) -> None:
    """Run this site's service: it owns the records, the base model and what the site keeps.

    The ClientApp beside the SuperNode asks it over a unix socket, and holds none of these. It
    runs until SIGTERM or Ctrl-C, and then ends within 10 s with exit code 0; a result that was not
    fetched yet stays on the disk. Start the SuperNode with fedapp site join. With peer = "FILE" in
    its file, or --peer FILE, the service is a training peer as well, as `fedapp peer` is one.

    Exit codes: 0 ended as asked; 2 settings, folders or socket; 6 a damaged audit log.

    Example: fedapp site serve --config site.toml

    Next step: fedapp site join; `fedapp audit verify` shows what was asked and sent.
    """
    half(_SERVE)(user_path(config).absolute(), say, user_path(peer).absolute() if peer else None)


@app.command()
def cancel(config: SiteFileOption = Path("site.toml")) -> None:
    """Call off what this site's service works on, and what waits there; the service goes on.

    The work ends at its next step, nothing of it leaves, and the coordinator is told that it was
    called off. The next message is worked on as always: to take part no more, end the SuperNode.

    Exit codes: 0 called off, or there was nothing; 1 the service does not answer; 2 settings.

    Example: fedapp site cancel --config site.toml

    Next step: fedapp audit verify; the audit log says what was called off.
    """
    file = load_site_file(user_path(config).absolute())
    called_off, ending = half(_CALL_OFF)(file.socket)
    for words in called_off:
        say(f"called off: {words}")
    for words in ending:
        say(f"is ending already: {words}")
    if not called_off and not ending:
        say("nothing to call off: the service is idle")


app.command()(keygen)
app.command()(site_steps.check)
app.command("dry-run")(site_steps.dry_run)
app.command("train-local")(site_steps.train_local)
app.command()(join)
