"""Bytes and messages of this node, round by round: serialised messages, without TLS and HTTP/2."""

from __future__ import annotations

from dataclasses import dataclass

_REMEMBERED = 10_000


@dataclass
class Traffic:
    """What one round cost.

    Attributes
    ----------
    sent_bytes, received_bytes : int
        Of all messages.
    sent_messages, received_messages : int
    payload_sent, payload_received : int
        Bytes of updates among them.
    resent : int
        Bytes of updates that were received and not kept, so that they had to come again.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_messages: int = 0
    received_messages: int = 0
    payload_sent: int = 0
    payload_received: int = 0
    resent: int = 0


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
        total = Traffic()
        for traffic in self.rounds.values():
            for name, value in vars(traffic).items():
                setattr(total, name, getattr(total, name) + value)
        return total
