"""`fedapp peer` that trains: one is killed and comes back, one leaves for ever, all others end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from desk import wait_for_line
from peers import QUICK, PeerProcesses

from fedapp.gossip.ledger import LedgerEntry
from fedapp.peft_format import load_peft
from fedapp.report.ledgers import read_ledgers
from fedapp.results import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

NAMES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
ROUNDS = 5
SETTINGS = f"""\
method = "lightyear"
[model]
source = "embedded:tiny-encoder"
max-length = 32
[data]
max-examples = 20
[lora]
rank = 2
[train]
threads = 1
device = "cpu"
[federation]
rounds = {ROUNDS}
[p2p]
gather-timeout = 120.0
"""


def rounds_of(sites: PeerProcesses, name: str) -> list[LedgerEntry]:
    notes: list[str] = []
    found = read_ledgers(folder(sites, name).ledger, notes)
    assert notes == []
    return found[name]


def folder(sites: PeerProcesses, name: str) -> RunFolder:
    return RunFolder(sites.folder(name) / "state" / "run")


def test_a_federation_without_a_server_ends_though_sites_die(tmp_path: Path) -> None:
    with PeerProcesses(tmp_path, NAMES) as sites:
        (tmp_path / "settings.toml").write_text(SETTINGS, encoding="utf-8")
        for name in NAMES:
            # Longer than a process takes to load its libraries on a busy machine.
            sites.write_site(name, {**QUICK, "dead-after": 60.0}, settings="../settings.toml")
        processes = {name: sites.peer(name) for name in NAMES}
        wait_for_line(processes["VA Long Beach"], f"round 1 of {ROUNDS}")
        wait_for_line(processes["Hungary"], f"round 1 of {ROUNDS}")
        for name in ("VA Long Beach", "Hungary"):
            processes[name].send_signal(signal.SIGKILL)
            processes[name].wait(30)
        processes["Hungary"] = sites.peer("Hungary")
        del processes["VA Long Beach"]
        ended = {name: process.communicate(timeout=600) for name, process in processes.items()}
        for name, process in processes.items():
            assert (process.returncode, ended[name][1]) == (0, ""), ended[name]

        assert "goes on after round" in ended["Hungary"][0]
        for name in processes:
            run, entries = folder(sites, name), rounds_of(sites, name)
            assert run.read_status()["state"] == "completed"
            assert entries[-1].round == ROUNDS
            assert "VA Long Beach" in entries[-1].missing
            assert any(row["split"] == "test" for row in run.read_metrics())
            assert load_peft(run.adapter).is_finite()
        entries = rounds_of(sites, "Cleveland")
        assert [entry.round for entry in entries] == list(range(1, ROUNDS + 1))
        assert {heard.origin for heard in entries[0].heard} == set(NAMES[1:])
        status = json.loads(folder(sites, "VA Long Beach").status_file.read_text())
        assert status["state"] == "running"
        assert folder(sites, "VA Long Beach").state() == "interrupted"
