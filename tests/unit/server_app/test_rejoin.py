"""A site that goes away in a round and comes back before its repeats are used up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from fake_federation import FakeGrid
from flwr.app import Error, Message

from fedapp.config import RunConfig
from fedapp.errors import MissingReplies
from fedapp.results import RunFolder
from server_app.app import run
from server_app.handshake import shake_hands
from server_app.rejoin import wait_for_sites

Settings = Callable[..., RunConfig]
NODE_UNAVAILABLE = 5


class Flaky(FakeGrid):
    """Hungary goes offline when round 2 is sent, and comes back after some polls of the nodes."""

    def __init__(self, polls: int, new_node: bool) -> None:
        super().__init__()
        self.polls, self.new_node = polls, new_node
        self.home = next(node for node, sites in self.hosted.items() if sites == ["Hungary"])
        self.away = False

    def get_node_ids(self) -> list[int]:
        if self.away:
            self.polls -= 1
            if self.polls < 0:
                self.away = False
                self.hosted[4242 if self.new_node else self.home] = ["Hungary"]
        return list(self.hosted)

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        batch = list(messages)
        if batch[0].metadata.group_id == "2" and self.home in self.hosted and self.polls >= 0:
            del self.hosted[self.home]
            self.away = True
        return super().push_messages(batch)

    def _deliver(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id in self.hosted:
            return super()._deliver(message)
        reply = Message(Error(NODE_UNAVAILABLE, "node unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink answers in its place
        return reply


@pytest.mark.parametrize("new_node", [False, True])
def test_a_restarted_site_is_waited_for(
    settings: Settings,
    finished: Callable[..., RunFolder],
    capsys: pytest.CaptureFixture[str],
    new_node: bool,
) -> None:
    clean = finished(FakeGrid(), name="clean")
    folder = finished(Flaky(2, new_node), name="flaky", federation__connect_timeout=30)

    digests = {json.loads(f.summary_file.read_text())["adapter_digest"] for f in (clean, folder)}
    assert len(digests) == 1
    text = capsys.readouterr().out
    assert "waiting up to 30 s for Hungary" in text
    assert ("site Hungary is back" in text) is new_node


def test_a_site_that_changed_is_not_taken_back(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    config, grid = settings(federation__max_round_retries=1), Flaky(1, True)
    folder = RunFolder.create(config)
    original = grid.get_node_ids

    def changed() -> list[int]:
        nodes = original()
        if 4242 in nodes:
            grid.sites["Hungary"].changes = {"base_model_digest": "c" * 64}
        return nodes

    grid.get_node_ids = changed  # type: ignore[method-assign]
    with pytest.raises(MissingReplies, match=r"site Hungary: its client app failed"):
        run(grid, config, folder, 1)
    assert (
        "site Hungary is not taken back: its base_model_digest changed" in capsys.readouterr().out
    )


class Away(FakeGrid):
    """Hungary's node is gone; a stranger's node is there, which never answers."""

    def __init__(self, strangers: int = 1) -> None:
        super().__init__()
        self.home = next(node for node, sites in self.hosted.items() if sites == ["Hungary"])
        self.strangers, self.polls = strangers, 0
        self.returns_after = 10**9

    def leave(self) -> None:
        del self.hosted[self.home]

    def get_node_ids(self) -> list[int]:
        self.polls += 1
        if self.polls > self.returns_after:
            self.hosted[self.home] = ["Hungary"]
        # Another stranger at every look: each must not begin a wait of its own.
        return [*self.hosted, *range(100, 100 + min(self.polls, self.strangers))]

    def _deliver(self, message: Message) -> Message | None:
        return None if message.metadata.dst_node_id < 1000 else super()._deliver(message)


def test_there_is_one_deadline_whoever_comes_meanwhile(settings: Settings) -> None:
    config, grid = settings(), Away(strangers=10**6)
    roster = shake_hands(FakeGrid(), config)
    grid.leave()

    started = time.monotonic()
    wait_for_sites(grid, roster, ["Hungary"], config)

    # connect-timeout and handshake-timeout are 0.3 s each; a wait for each would take for ever
    assert 0.5 < time.monotonic() - started < 30


def test_a_silent_stranger_does_not_delay_a_site_that_is_back(settings: Settings) -> None:
    config = settings(federation__connect_timeout=60, federation__handshake_timeout=60)
    roster, grid = shake_hands(FakeGrid(), config), Away()
    grid.leave()
    grid.returns_after = 2

    started = time.monotonic()
    wait_for_sites(grid, roster, ["Hungary"], config)

    assert time.monotonic() - started < 30


def test_all_sites_of_a_restarted_node_come_back(settings: Settings) -> None:
    """Also one whose update of this round is there already."""
    config, grid = settings(), FakeGrid(nodes=2)
    roster = shake_hands(grid, config)
    home = roster.nodes["Hungary"]
    grid.hosted[4242] = grid.hosted.pop(home)
    together = grid.hosted[4242]
    assert len(together) == 2

    wait_for_sites(grid, roster, ["Hungary"], config)

    assert {roster.nodes[site] for site in together} == {4242}


def test_a_site_that_stays_away_ends_the_run(settings: Settings) -> None:
    config, grid = settings(federation__max_round_retries=1), Flaky(10**9, False)

    with pytest.raises(MissingReplies, match="round 2: 3 of 4 sites sent a valid update"):
        run(grid, config, RunFolder.create(config), 1)


class Leaving(FakeGrid):
    """Hungary's node goes away while it is asked who it is, and is back a little later."""

    def __init__(self) -> None:
        super().__init__()
        self.home = next(node for node, sites in self.hosted.items() if sites == ["Hungary"])
        self.asked, self.looks = 0, 0

    def get_node_ids(self) -> list[int]:
        self.looks += self.asked == 1
        away = self.asked == 1 and self.looks < 4
        return [node for node in self.hosted if node != self.home or not away]

    def _deliver(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id != self.home:
            return super()._deliver(message)
        self.asked += 1
        if self.asked > 1:
            return super()._deliver(message)
        return Message(Error(NODE_UNAVAILABLE, "node unavailable"), reply_to=message)


def test_a_node_that_goes_away_in_the_handshake_is_asked_again(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Leaving()
    config = settings(federation__min_sites=len(grid.sites), federation__connect_timeout=30)
    roster = shake_hands(grid, config)

    assert "Hungary" in roster.sites
    assert grid.asked == 2
    assert f"node {grid.home} went away before it answered" in capsys.readouterr().out
