"""`fedapp peer`: says who is alive, ends when told, and refuses a bad start in a sentence."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from desk import wait_for_line
from peers import PeerProcesses, terminate
from verdicts import assert_one_sentence

pytestmark = pytest.mark.slow

NAMES = ("Bern", "Kiel", "Zürich")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[PeerProcesses]:
    with PeerProcesses(tmp_path, NAMES) as made:
        yield made


def test_it_says_who_is_alive_and_who_falls_silent_and_comes_back(sites: PeerProcesses) -> None:
    bern, kiel = sites.peer("Bern"), sites.peer("Kiel")
    wait_for_line(bern, "alive: Kiel; silent: Zürich")
    wait_for_line(kiel, "alive: Bern; silent: Zürich")
    zurich = sites.peer("Zürich")
    wait_for_line(bern, "alive: Kiel, Zürich; sent ")
    kiel.send_signal(signal.SIGKILL)
    kiel.wait(10)
    wait_for_line(bern, "alive: Zürich; silent: Kiel")
    # At another address, of which only it knows.
    sites.ports["Kiel"] += 1 if sites.ports["Kiel"] < 65535 else -1
    sites.write_site("Kiel", announce=f"127.0.0.1:{sites.ports['Kiel']}")
    sites.peer("Kiel")
    wait_for_line(bern, "alive: Kiel, Zürich")

    for code, output, errors in terminate(bern, zurich):
        assert (code, errors) == (0, "")
        assert output.splitlines()[-1].startswith(("Bern", "Zürich"))
        assert " has ended: sent " in output.splitlines()[-1]


def test_ctrl_c_ends_it_too(sites: PeerProcesses) -> None:
    process = sites.peer("Bern")
    wait_for_line(process, "listens on")
    process.send_signal(signal.SIGINT)

    assert process.communicate(timeout=10)[1] == ""
    assert process.returncode == 0


Spoil = Callable[[PeerProcesses, Path], object]
FAULTS: dict[str, tuple[Spoil, int, tuple[str, ...]]] = {
    "no file": (lambda s, f: (f / "site.toml").unlink(), 2, ("site.toml does not exist",)),
    "unknown key of the gossip layer": (
        lambda s, f: s.write_site("Bern", {"chunk-kb": 64}),
        *(2, ("unknown setting 'gossip.chunk-kb'; did you mean 'chunk-kib'?",)),
    ),
    "another's certificate": (
        lambda s, f: s.authority.write(f, "Kiel"),
        *(2, ("certificate.pem is for 'Kiel', expected 'Bern'",)),
    ),
    "an expired certificate": (
        lambda s, f: s.authority.write(f, "Bern", timedelta(seconds=-60)),
        *(2, ("certificate.pem",)),
    ),
    "a store that is a file": (
        lambda s, f: (f / "store").write_text(""),
        *(1, ("store",)),
    ),
}


@pytest.fixture(scope="module")
def refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Start bad peers, two at a time, and wait for their ends; more mistakes: test_config_peer."""
    done, waiting = {}, list(FAULTS)
    while waiting:
        made, waiting = waiting[:2], waiting[2:]
        running = {}
        for name in made:
            sites = PeerProcesses(tmp_path_factory.mktemp("sites"), NAMES)
            FAULTS[name][0](sites, sites.folder("Bern"))
            running[name] = sites.peer("Bern")
        for name, process in running.items():
            output, errors = process.communicate(timeout=180)
            done[name] = subprocess.CompletedProcess(name, process.returncode, output, errors)
    return done


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_start_is_one_sentence(
    refused: dict[str, subprocess.CompletedProcess[str]], name: str
) -> None:
    _, code, words = FAULTS[name]
    assert_one_sentence(refused[name], code, *words)
    assert refused[name].stdout == ""


def test_a_taken_port_and_a_taken_store_are_named(sites: PeerProcesses) -> None:
    wait_for_line(sites.peer("Bern"), "listens on")
    second = sites.peer("Bern")
    output, errors = second.communicate(timeout=180)
    done = subprocess.CompletedProcess("second", second.returncode, output, errors)
    assert_one_sentence(done, 1, "belongs to another node that runs")

    sites.write_site("Bern", store="other")
    third = sites.peer("Bern")
    output, errors = third.communicate(timeout=180)
    done = subprocess.CompletedProcess("third", third.returncode, output, errors)
    assert_one_sentence(done, 1, "cannot be opened; another program may have it")
