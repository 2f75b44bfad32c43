"""``fedapp site``: what a hospital's operator runs."""

from __future__ import annotations

from pathlib import Path

import typer

from fedapp.cli import site_steps
from fedapp.cli.console import SentenceGroup, say
from fedapp.cli.half import half
from fedapp.cli.join import join
from fedapp.cli.keygen import keygen
from fedapp.cli.site_steps import SiteFileOption
from fedapp.paths import user_path

app = typer.Typer(
    cls=SentenceGroup,
    no_args_is_help=True,
    help="A hospital's own site: its service, and the steps before it joins.",
)

# Loaded on demand: the coordinator's installation has neither the site's half nor torch.
_SERVE = "client_app.service.serve:serve"


@app.command()
def serve(config: SiteFileOption = Path("site.toml")) -> None:
    """Run this site's service: it owns the records, the base model and what the site keeps.

    The ClientApp beside the SuperNode asks it over a unix socket, and holds none of these. It
    runs until SIGTERM or Ctrl-C, and then ends within 10 s with exit code 0; a result that was not
    fetched yet stays on the disk. Start the SuperNode with fedapp site join. With peer = "FILE" in
    its file the service is a training peer as well, as `fedapp peer` is one.

    Exit codes: 0 ended as asked; 2 settings, folders or socket; 6 a damaged audit log.

    Example: fedapp site serve --config site.toml

    Next step: fedapp site join; `fedapp audit verify` shows what was asked and sent.
    """
    half(_SERVE)(user_path(config).absolute(), say)


app.command()(keygen)
app.command()(site_steps.check)
app.command("dry-run")(site_steps.dry_run)
app.command("train-local")(site_steps.train_local)
app.command()(join)
