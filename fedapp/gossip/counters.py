"""Bytes and messages of this node, round by round: serialised messages, without TLS and HTTP/2."""

from __future__ import annotations

from fedapp.gossip.traffic import Traffic

_REMEMBERED = 10_000


class Counters:
    """The traffic of the newest 10,000 rounds; a message counts for this node's own round."""

    def __init__(self) -> None:
        self.round = 0
        self.rounds: dict[int, Traffic] = {}

    @property
    def now(self) -> Traffic:
        """The traffic of the present round."""
        if self.round not in self.rounds:
            self.rounds[self.round] = Traffic()
            if len(self.rounds) > _REMEMBERED:
                del self.rounds[min(self.rounds)]
        return self.rounds[self.round]

    def sent(self, size: int, payload: int = 0) -> None:
        """Count a message of ``size`` bytes that left, ``payload`` of them an update's."""
        now = self.now
        now.sent_messages += 1
        now.sent_bytes += size
        now.payload_sent += payload

    def received(self, size: int, payload: int = 0) -> None:
        """Count a message of ``size`` bytes that came, ``payload`` of them an update's."""
        now = self.now
        now.received_messages += 1
        now.received_bytes += size
        now.payload_received += payload

    def total(self) -> Traffic:
        """Return the sum over all rounds that are remembered."""
        return sum(self.rounds.values(), Traffic())
