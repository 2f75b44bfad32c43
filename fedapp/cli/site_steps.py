"""The steps before a hospital joins: ``fedapp site check``, ``dry-run``, ``train-local``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapp.cli.console import say
from fedapp.cli.half import half
from fedapp.cli.overrides import read_overrides
from fedapp.config import RunConfig
from fedapp.config_site import SiteFile, load_site_file
from fedapp.paths import user_path
from fedapp.preflight.finding import Finding, Status, failed

_CHECK = "client_app.preflight.check:check_site"
_DRY_RUN = "client_app.preflight.dry_run:dry_run"
_TRAIN_LOCAL = "client_app.preflight.train_local:train_local"
_COLOURS = {
    Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red", Status.SKIPPED: "dim"
}  # fmt: skip

SiteFileOption = Annotated[Path, typer.Option("--config", help="The site's file, TOML.")]
PeerFileOption = Annotated[
    Path | None,
    typer.Option("--peer", help="A peer's file with settings, instead of what the site's says."),
]
RunOption = Annotated[
    list[str] | None,
    typer.Option(
        "--run", help="Settings of the run to prepare for: 'key=value ...' or a .toml file."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]


def check(
    config: SiteFileOption = Path("site.toml"),
    run: RunOption = None,
    as_json: JsonOption = False,
    peer: PeerFileOption = None,
) -> None:
    """Look at everything that can be known before joining: records, device, way to the coordinator.

    The network is looked at if check.superlink and check.authority are in the site's file. With
    peer = "FILE" there, or --peer FILE, so is what the service needs to be a training peer.
    Nothing is sent but a request for the coordinator's health page.

    Exit codes: 0 nothing failed; 1 something failed; 2 settings.

    Example: fedapp site check --config site.toml

    Next step: mend what failed; then fedapp site dry-run.
    """
    file, settings = _read(config, run, peer)
    findings: list[Finding] = list(half(_CHECK)(file, settings))
    if as_json:
        say(json.dumps([finding.as_dict() for finding in findings], indent=1))
    else:
        Console().print(table(findings))
        bad = failed(findings)
        say("Next: mend what failed." if bad else "Next: fedapp site dry-run")
    if failed(findings):
        raise typer.Exit(1)


def dry_run(
    config: SiteFileOption = Path("site.toml"),
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send made-up records through the whole path: service, socket, training, update.

    The site's own records are not read, and nothing leaves this machine. It says how long each
    step takes and what of a round would leave.

    Exit codes: 0 all steps worked; otherwise that of the step that failed.

    Example: fedapp site dry-run --config site.toml

    Next step: fedapp site train-local, on this site's own records.
    """
    file, settings = _read(config, run)
    found = half(_DRY_RUN)(file, settings, _teller(as_json))
    if as_json:
        say(json.dumps(found, indent=1))
        return
    leaves = found["leaves"]
    for name, payload in leaves.get("payloads", {}).items():
        say(f"would leave: '{name}', {payload['bytes']:,} bytes, {payload['codec']}")
    tables = ", ".join(leaves.get("metrics", {})) or "none, too few records"
    say(f"would leave: metrics {tables}; numbers {', '.join(leaves.get('numbers', []))}")
    say("Next: fedapp site train-local")


def train_local(
    config: SiteFileOption = Path("site.toml"),
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train on this site's own records alone, with the budget of a whole run; nothing leaves.

    Exit codes: 0 trained; 2 settings; 3 records; 1 anything else.

    Example: fedapp site train-local --config site.toml

    Next step: send the coordinator the signing request of fedapp site keygen, and join.
    """
    file, settings = _read(config, run)
    found = half(_TRAIN_LOCAL)(file, settings, _teller(as_json))
    say(json.dumps(found, indent=1) if as_json else "Nothing has left this machine.")
    if not as_json:
        say("Next: fedapp site serve, and beside it fedapp site join.")


def table(findings: Iterable[Finding]) -> Table:
    """Return the findings for a terminal; what others wrote cannot change its look."""
    drawn = Table(show_lines=False, expand=False)
    for column in ("check", "result", "what was found", "what to do"):
        drawn.add_column(column, overflow="fold")
    for finding in findings:
        drawn.add_row(
            Text(finding.check),
            Text(finding.status.value, style=_COLOURS[finding.status]),
            Text(finding.detail),
            Text(finding.advice),
        )
    return drawn


def _read(
    config: Path, run: list[str] | None, peer: Path | None = None
) -> tuple[SiteFile, RunConfig]:
    file = load_site_file(user_path(config), user_path(peer).absolute() if peer else None)
    return file, RunConfig.from_flat(read_overrides(run or []))


def _teller(as_json: bool) -> Callable[[str], Any]:
    return (lambda _line: None) if as_json else say
