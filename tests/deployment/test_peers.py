"""Three hospitals in containers that learn without a server: one is killed, one is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine import docker
from peer_containers import PeerContainers
from peers import QUICK, TINY
from stack_faults import crash_container

from fedapp.gossip.ledger import LedgerEntry
from fedapp.report.ledgers import read_ledgers

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

STAYS, CUT, KILLED = NAMES = ("Cleveland", "Hungary", "VA Long Beach")
GRACE = 10.0  # seconds
SETTINGS = f"""\
{TINY}[train]
threads = 1
device = "cpu"
max-steps = 15
[federation]
rounds = 10000
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
    with PeerContainers(tmp_path, NAMES, SETTINGS, {**QUICK, "dead-after": 8.0}) as sites:

        def entries() -> list[LedgerEntry]:
            notes: list[str] = []
            found = read_ledgers(sites.run(STAYS).ledger, notes)
            assert not notes, notes
            return found.get(STAYS, [])

        def reach(condition: Callable[[list[LedgerEntry]], bool], within: float = 240.0) -> None:
            """Wait until the ledger of the site that nothing befalls says so."""
            end = time.monotonic() + within
            while not condition(entries()):
                assert time.monotonic() < end, sites.all_logs()
                time.sleep(0.5)

        reach(lambda rounds: len(rounds) >= 2 and not rounds[-1].missing)
        docker("kill", sites.containers[KILLED])
        reach(lambda rounds: rounds[-1].missing == (KILLED,))
        killed = entries()[-1].round
        docker("start", sites.containers[KILLED])
        reach(lambda rounds: rounds[-1].round > killed and not rounds[-1].missing)
        # Its policy starts it again, so soon that it may be missed by nobody.
        crash_container(sites.containers[KILLED])
        crashed = entries()[-1].round
        wait_until(lambda: sites.restarts(KILLED) == 1, sites.all_logs, 60.0)
        reach(lambda rounds: rounds[-1].round > crashed + 1 and not rounds[-1].missing)
        sites.cut_off(CUT)
        cut = entries()[-1].round
        reach(lambda rounds: rounds[-1].round > cut + 1 and rounds[-1].missing == (CUT,))
        healed = entries()[-1].round
        alone = sites.rounds(CUT)
        sites.heal(CUT)
        reach(lambda rounds: rounds[-1].round > healed and not rounds[-1].missing)
        with ThreadPoolExecutor() as pool:
            ends = list(pool.map(sites.stop, NAMES))
        rounds = entries()
        print("killed in", killed, "cut off in", cut, "healed in", healed, "of", len(rounds), ends)

        assert [code for code, _ in ends] == [0, 0, 0], sites.all_logs()
        assert max(seconds for _, seconds in ends) < GRACE
        assert [entry.round for entry in rounds] == list(range(1, len(rounds) + 1))
        assert "goes on after round" in sites.logs(KILLED)
        assert sites.rounds(CUT) > alone
        scored = {row["round"] for row in sites.run(STAYS).read_metrics() if "accuracy" in row}
        assert scored == {entry.round for entry in rounds}
        assert sites.run(STAYS).read_status()["state"] == "stopped"
