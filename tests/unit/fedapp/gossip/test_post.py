"""The nodes of a simulation's sites carry what mailboxes hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedapp.config import RunConfig
from fedapp.errors import ConfigError, GossipError
from fedapp.gossip.post import Post
from fedapp.mailbox import Letter, Mailbox

RUN = "0123456789abcdef" * 2
SITES = ["Bern", "Genf", "Kiel", "Zürich"]


def post(root: Path, **flat: object) -> Post:
    config = RunConfig.from_flat({"method": "lightyear", "p2p.gather-timeout": 30.0, **flat})
    return Post(SITES, RUN, root / "post", lambda site: box(root, site), config)


def box(root: Path, site: str) -> Mailbox:
    return Mailbox.of(root / "sites", site, RUN)


def put(root: Path, round: int, *sites: str) -> None:
    for site in sites:
        payload = f"{site} {round}".encode() * 10
        box(root, site).send(round, Letter(site, payload, "ab" * 32, "fp32"))


def test_everybody_gets_what_its_neighbours_published_and_who_is_away_is_missing(
    tmp_path: Path,
) -> None:
    with post(tmp_path) as open_post:
        put(tmp_path, 1, *SITES)
        carried = open_post.exchange(1, SITES)
        put(tmp_path, 2, "Bern", "Kiel", "Zürich")
        open_post.exchange(2, ["Zürich", "Bern", "Kiel"])
        put(tmp_path, 3, *SITES)  # and is back
        open_post.exchange(3, SITES)

    size = len(b"Bern 1" * 10)
    assert (carried.received["Kiel"], carried.sent["Bern"]) == (10 * (6 + 6 + 9), 3 * size)
    first, second, third = (box(tmp_path, "Kiel").received(round) for round in (1, 2, 3))
    assert first is None, "only two rounds are kept"
    assert second is not None
    assert third is not None
    assert ([one.origin for one in second.letters], second.missing) == (
        ["Bern", "Zürich"], ("Genf",),
    )  # fmt: skip
    assert second.letters[0].payload == b"Bern 2" * 10
    assert len(second.letters[0].digest) == len(second.own_digest) == 64
    assert third.missing == ()
    assert third.degrees == dict.fromkeys(SITES, 3)
    assert third.traffic.payload_received == third.traffic.payload_received > 0
    assert not (tmp_path / "post").exists()


def test_a_ring_brings_two_and_another_life_of_the_process_begins_anew(tmp_path: Path) -> None:
    for _ in range(2):  # resumed: round 1 is done again, by nodes with other certificates
        put(tmp_path, 1, *SITES)
        with post(tmp_path, **{"p2p.topology": "ring"}) as open_post:
            open_post.exchange(1, SITES)
            delivery = box(tmp_path, "Bern").received(1)
        assert delivery is not None
        assert [one.origin for one in delivery.letters] == ["Genf", "Zürich"]


def test_faults_are_sentences(tmp_path: Path) -> None:
    with (
        post(tmp_path) as open_post,
        pytest.raises(GossipError, match="site Bern, round 1: the site said"),
    ):
        open_post.exchange(1, ["Bern"])
    with pytest.raises(ConfigError, match="k-regular"):
        post(tmp_path, **{"p2p.topology": "k-regular", "p2p.degree": 9})


def test_it_runs_in_a_thread_without_an_event_loop_as_flowers_server_does(tmp_path: Path) -> None:
    code = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from fedapp.config import RunConfig\n"
        "from fedapp.gossip.post import Post\n"
        "from fedapp.mailbox import Mailbox\n"
        "def run():\n"
        "    with Post(['A', 'B'], '0' * 32, Path(sys.argv[1]), lambda site: Mailbox(Path('x')),\n"
        "              RunConfig()):\n"
        "        print('open')\n"
        "thread = threading.Thread(target=run)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "post")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("open\n", 0), done.stderr
