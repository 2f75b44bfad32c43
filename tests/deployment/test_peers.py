"""Three hospitals in containers that learn without a server: one is killed, one is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from peer_containers import PeerContainers
from peers import QUICK
from stack_faults import crash_container

from fedapp.peft_format import load_peft
from fedapp.report.ledgers import read_ledgers

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

STAYS, CUT, KILLED = NAMES = ("Cleveland", "Hungary", "VA Long Beach")
ROUNDS = 24
SETTINGS = f"""\
method = "lightyear"
[model]
source = "embedded:tiny-encoder"
max-length = 32
[lora]
rank = 2
[train]
threads = 1
device = "cpu"
max-steps = 15
[federation]
rounds = {ROUNDS}
[p2p]
gather-timeout = 60.0
"""


def wait_until(condition: Callable[[], bool], what: Callable[[], str], within: float) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


def test_learning_goes_on_though_one_is_killed_and_one_is_cut_off(
    images: None, tmp_path: Path
) -> None:
    # Longer than a process takes to load its libraries beside two others.
    gossip = {**QUICK, "dead-after": 8.0}
    with PeerContainers(tmp_path, NAMES, SETTINGS, gossip) as sites:

        def all_logs() -> str:
            return "\n".join(f"==== {name}\n{sites.logs(name)}" for name in NAMES)

        def reach(name: str, round: int, within: float = 120.0) -> None:
            wait_until(lambda: sites.rounds(name) >= round, all_logs, within)

        for name in NAMES:
            reach(name, 2)
        crash_container(sites.containers[KILLED])
        killed = sites.rounds(STAYS)
        reach(STAYS, killed + 3)
        wait_until(lambda: "goes on after round" in sites.logs(KILLED), all_logs, 120)
        reach(KILLED, sites.rounds(STAYS))
        sites.cut_off(CUT)
        cut = sites.rounds(STAYS)
        reach(STAYS, cut + 4)
        alone = sites.rounds(CUT)
        sites.heal(CUT)
        wait_until(lambda: all(sites.ended(name) for name in NAMES), all_logs, 240)

        assert {name: sites.exit_code(name) for name in NAMES} == dict.fromkeys(NAMES, 0)
        entries = {name: read_ledgers(sites.run(name).ledger, [])[name] for name in NAMES}
        assert [entry.round for entry in entries[STAYS]] == list(range(1, ROUNDS + 1))
        missing = {name: [] for name in NAMES}
        for entry in entries[STAYS]:
            for name in entry.missing:
                missing[name].append(entry.round)
        print("missing at", STAYS, missing, "killed", killed, "cut", cut, "alone", alone)
        assert missing[KILLED]
        assert missing[KILLED][0] > 1
        assert [round for round in missing[CUT] if round > cut]
        for name in NAMES:
            run = sites.run(name)
            assert run.read_status()["state"] == "completed"
            assert entries[name][-1].round == ROUNDS
            assert entries[name][-1].missing == ()
            assert load_peft(run.adapter).is_finite()
