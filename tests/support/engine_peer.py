"""A peer process whose engine publishes what everybody can predict, and can be killed anywhere.

Usage:
    python tests/support/engine_peer.py SITE.TOML --size 200000 --rounds 10 --kill "receiving"

The node, its files and its way to start and end are those of `fedapp peer`; training is replaced by
a payload that follows from the site's name and the round, so that every peer can tell whether what
it was handed is what its origin made.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedapp import hash_chain
from fedapp.config_peer import load_peer
from fedapp.errors import FedappError, MissingReplies
from fedapp.gossip import GossipNode, Ledger
from fedapp.gossip.ledger import Heard
from fedapp.gossip.partial import Partial
from fedapp.gossip.peer import run_peer
from fedapp.gossip.replay import ReplayGuard
from fedapp.gossip.server import Server
from fedapp.gossip.store import Store

LAYOUT = "ab" * 32
DEADLINE = 20.0  # seconds; far more than a round takes where nobody is away

PATIENCE = 3.0  # seconds in which a peer that comes back is called by the others


def expected(name: str, round: int, size: int) -> bytes:
    """Return what the site publishes in the round."""
    seed = hashlib.sha256(f"{name} {round}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Killer:
    """Ends this very process at a point of its second round, as a power cut would."""

    def __init__(self, point: str | None) -> None:
        self.armed = False
        if point is not None:
            POINTS[point](self)

    def strike(self) -> None:
        """Die, if it is time to."""
        if self.armed:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: Any, name: str, skip: int = 0) -> None:
        """Strike at a call of a function, after ``skip`` calls that go well."""
        inner, calls = getattr(owner, name), [0]

        def struck(*args: Any, **kwargs: Any) -> Any:
            calls[0] += self.armed
            if calls[0] > skip:
                self.strike()
            return inner(*args, **kwargs)

        setattr(owner, name, struck)

    def after(self, owner: Any, name: str) -> None:
        """Strike when a function has done its work."""
        inner = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            self.strike()
            return result

        setattr(owner, name, struck)


def _half_a_line(killer: Killer) -> None:
    inner = hash_chain.HashChain._write

    def struck(self: hash_chain.HashChain, line: bytes) -> None:
        if killer.armed:
            inner(self, line[: len(line) // 2])
            killer.strike()
        inner(self, line)

    hash_chain.HashChain._write = struck  # type: ignore[method-assign]


def _half_a_file(killer: Killer) -> None:
    from fedapp import atomic

    replace = os.replace

    def struck(source: Any, target: Any) -> None:
        if Path(target).name == "accepted.json":
            killer.strike()
        replace(source, target)

    atomic.os.replace = struck  # type: ignore[attr-defined]


POINTS: dict[str, Callable[[Killer], None]] = {
    "publishing": lambda killer: killer.before(Store, "add"),
    "published": lambda killer: killer.after(Store, "add"),
    "serving": lambda killer: killer.before(Server, "_write", skip=2),
    "receiving": lambda killer: killer.before(Partial, "append", skip=2),
    "received": lambda killer: killer.before(Partial, "finish"),
    "accepting": lambda killer: killer.before(ReplayGuard, "admit"),
    "saving what was accepted": _half_a_file,
    "writing the ledger": _half_a_line,
    "recorded": lambda killer: killer.after(Ledger, "record"),
    "closing": lambda killer: killer.before(GossipNode, "close"),
}


class Predictable:
    """Rounds without training, see the module."""

    def __init__(self, options: argparse.Namespace, ledger: Ledger) -> None:
        self._options, self._ledger = options, ledger
        self._killer = Killer(options.kill)

    async def run(self, node: GossipNode) -> None:
        """Publish, gather, compare and record, round after round, and stay when they are done."""
        entries = self._ledger.entries()
        round_ = max((entry.round for entry in entries), default=0) + 1
        if entries:
            round_ = max(round_, await _round_of_the_others(node, PATIENCE))
        first = round_
        while round_ <= self._options.rounds:
            self._killer.armed = round_ > first and self._options.kill != "closing"
            await self._round(node, round_)
            round_ = max(round_ + 1, await _round_of_the_others(node, 0.0))
            await asyncio.sleep(self._options.pace)
        self._killer.armed = True
        print("done", flush=True)
        await asyncio.Event().wait()

    async def _round(self, node: GossipNode, round_: int) -> None:
        size, minimum = self._options.size, self._options.minimum
        envelope = await node.publish(
            round_, expected(node.name, round_, size), layout_digest=LAYOUT
        )
        try:
            updates = await node.gather(round_, deadline=self._options.deadline, minimum=minimum)
        except MissingReplies as error:
            print(f"round {round_}: {error}", flush=True)
            updates = []
        heard = []
        for update in updates:
            made = update.envelope
            assert made.round == round_
            assert update.payload == expected(made.origin, round_, size), made.origin
            heard.append(
                Heard(
                    origin=made.origin, digest=made.payload_digest, size=made.size, accepted=True,
                    weight=1 / (len(updates) + 1),
                )
            )  # fmt: skip
        self._ledger.record(
            round_,
            heard,
            time=time.time(),
            missing=node.origins - {one.origin for one in heard},
            own_digest=envelope.payload_digest,
            own_weight=1 / (len(updates) + 1),
            traffic=node.traffic.rounds.get(round_),
        )
        print(json.dumps({"round": round_, "heard": [one.origin for one in heard]}), flush=True)


async def _round_of_the_others(node: GossipNode, patience: float) -> int:
    """Return where most peers are: what is long past for them, they do not keep."""
    end = time.monotonic() + patience
    while True:
        asked = [peer.round for peer in node.membership if peer.round]
        if len(asked) >= len(node.neighbours) - 1 or time.monotonic() >= end:
            return statistics.median_high(asked) if asked else 0
        await asyncio.sleep(0.05)


def main() -> int:
    """Run until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("site", type=Path)
    parser.add_argument("--size", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=10**6)
    parser.add_argument("--minimum", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=DEADLINE)
    parser.add_argument("--pace", type=float, default=0.1)
    parser.add_argument("--kill", choices=sorted(POINTS), default=None)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stdout)
    start = load_peer(options.site)
    try:
        ledger = Ledger(options.site.with_name("ledger.jsonl"), start.run, start.name)
        asyncio.run(run_peer(start, Predictable(options, ledger)))
    except FedappError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
