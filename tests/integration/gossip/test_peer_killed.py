"""A peer is killed at every phase of a round: it comes back, and the others go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from desk import wait_for_line
from engine_peer import POINTS, expected
from peers import QUICK, PeerProcesses, terminate

from fedapp.gossip.ledger import LedgerEntry, newest, read_ledger

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

OTHERS, VICTIM = ("Aarau", "Bern", "Chur"), "Davos"
SIZE = 200_000  # four chunks
LONGEST = 30.0  # seconds of a round, on a machine that others use too; a deadline is twice that
SETTINGS = {**QUICK, "dead-after": 2.0, "digest-wait": 0.5}


class Story(NamedTuple):
    """What is left when it is over."""

    codes: dict[str, int]
    ends: dict[str, tuple[int, str, str]]
    ledgers: dict[str, list[LedgerEntry]]
    torn: dict[str, bool]


def ledger_of(sites: PeerProcesses, name: str) -> list[LedgerEntry]:
    return read_ledger(sites.folder(name) / "ledger.jsonl")


def missed(entries: list[LedgerEntry]) -> int:
    return sum(VICTIM in e.missing for e in entries)


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def heard_since(entries: list[LedgerEntry], round_: int) -> bool:
    later = [e for e in entries if e.round > round_]
    return any(VICTIM in {h.origin for h in e.heard} for e in later)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Three peers run on while the fourth is killed again and again."""
    with PeerProcesses(
        tmp_path_factory.mktemp("sites"), [*OTHERS, VICTIM], gossip=SETTINGS
    ) as sites:
        size = ("--size", str(SIZE), "--deadline", str(2 * LONGEST))
        steady = {name: sites.trainer(name, *size) for name in OTHERS}
        codes, torn = {}, {}
        for point in POINTS:
            rounds = ("--rounds", "0") if point == "closing" else ()
            victim = sites.trainer(VICTIM, *size, *rounds, "--kill", point)
            if point == "closing":
                wait_for_line(victim, "done")
                victim.send_signal(signal.SIGTERM)
            victim.communicate(timeout=120)
            codes[point] = victim.returncode
            ledger = sites.folder(VICTIM) / "ledger.jsonl"
            torn[point] = bool(ledger.read_bytes()) and not ledger.read_bytes().endswith(b"\n")
        wait_for(lambda: all(missed(ledger_of(sites, name)) >= 2 for name in OTHERS))
        before = max(e.round for name in OTHERS for e in ledger_of(sites, name))
        last = sites.trainer(VICTIM, *size)
        wait_for(lambda: all(heard_since(ledger_of(sites, name), before) for name in OTHERS))
        everybody = {**steady, VICTIM: last}
        ends = dict(zip(everybody, terminate(*everybody.values()), strict=True))
        ledgers = {name: ledger_of(sites, name) for name in everybody}
        yield Story(codes, ends, ledgers, torn)


@pytest.mark.parametrize("point", POINTS)
def test_it_was_killed_there(story: Story, point: str) -> None:
    assert story.codes[point] == -signal.SIGKILL
    assert story.torn[point] == (point == "writing the ledger")


@pytest.mark.parametrize("name", [*OTHERS, VICTIM])
def test_everybody_ends_when_told_and_was_handed_only_what_its_origin_made(
    story: Story, name: str
) -> None:
    """The engine compares every payload; an assertion there would end it with another code."""
    code, output, errors = story.ends[name]
    assert (code, errors) == (0, "")
    assert "has ended" in output.splitlines()[-1]
    for entry in story.ledgers[name]:
        for heard in entry.heard:
            assert heard.size == len(expected(heard.origin, entry.round, SIZE))


@pytest.mark.parametrize("name", OTHERS)
def test_the_others_go_on_and_hear_it_again(story: Story, name: str) -> None:
    entries = newest(story.ledgers[name])
    assert [e.round for e in entries] == list(range(1, len(entries) + 1))  # none was left out
    times = [e.time for e in entries]
    assert max(b - a for a, b in pairwise(times)) < LONGEST
    others = set(OTHERS) - {name}
    assert all({h.origin for h in e.heard} >= others for e in entries)
    alone = [e.round for e in entries if VICTIM in e.missing]
    both = [e.round for e in entries if VICTIM in {h.origin for h in e.heard}]
    assert max(both) > max(alone)


def test_no_round_of_the_victim_counts_twice_with_different_content(story: Story) -> None:
    published = {(e.round, e.own_digest) for e in story.ledgers[VICTIM]}
    assert len(published) == len({round_ for round_, _ in published})
    digests = {
        (e.round, h.digest)
        for name in OTHERS
        for e in story.ledgers[name]
        for h in e.heard
        if h.origin == VICTIM
    }
    assert len(digests) == len({round_ for round_, _ in digests})
    assert {d for d in digests if d[0] in {r for r, _ in published}} <= published
