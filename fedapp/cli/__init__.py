"""The command line."""

from __future__ import annotations

import typer

from fedapp.cli import audit, commands, config, site, start
from fedapp.cli.console import SentenceGroup
from fedapp.cli.peer import peer
from fedapp.cli.provision import enrol, provision
from fedapp.cli.run import run

app = typer.Typer(
    cls=SentenceGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated LoRA fine-tuning. Start with: fedapp run",
)
app.command()(run)
app.command()(commands.stop)
app.add_typer(config.app, name="config")
app.command()(peer)
app.command()(provision)
app.command()(enrol)
app.command()(start.superlink)
app.command()(start.superexec)
app.command()(start.supernode)
app.add_typer(site.app, name="site")
app.add_typer(audit.app, name="audit")
app.command()(commands.report)
app.command()(commands.export)
app.command()(commands.version)
