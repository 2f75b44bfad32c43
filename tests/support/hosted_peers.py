"""Sites whose services are training peers as well: their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers import PeerProcesses

from fedapp.cli import toml
from fedapp.gossip.ledger import LedgerEntry
from fedapp.report.ledgers import read_ledgers
from fedapp.results import RunFolder

SETTINGS: dict[str, Any] = {
    "method": "lightyear",
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 32,
    "lora.rank": 2,
    "data.labels": "no heart disease,heart disease",
    "data.max-examples": 20,
    "train.local-epochs": 1,
    "train.threads": 1,
    "train.device": "cpu",
    "federation.rounds": 2,
    "p2p.minimum": 1,
    "p2p.gather-timeout": 60.0,
}


def write_settings(sites: PeerProcesses, **changes: Any) -> None:
    """Write the run's settings, which are equal at every site."""
    (sites.root / "settings.toml").write_text(toml.lines({**SETTINGS, **changes}))


def write_hosted(sites: PeerProcesses, name: str, policy: str = "") -> Path:
    """Write the files of a service that is a peer; return the service's own."""
    sites.write_site(name, settings="../settings.toml", status_interval=30.0)
    file = sites.folder(name) / "service.toml"
    file.write_text(
        toml.lines({"name": name, "state": "kept", "peer": "site.toml"})
        + '[data]\nsource = "embedded:heart"\n[policy]\n'
        + policy
    )
    return file


def run_of(file: Path) -> RunFolder:
    """Return where a service's peer leaves its results."""
    return RunFolder(file.parent / "kept" / "peer" / "run")


def ledger_of(file: Path, name: str) -> list[LedgerEntry]:
    """Return a peer's ledger."""
    return read_ledgers(run_of(file).ledger, [])[name]
