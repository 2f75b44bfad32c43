"""What a round costs on the wire: bytes and messages of one node, counted as they pass."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, replace

_KEPT = 64  # rounds; a node runs for months


@dataclass(frozen=True)
class RoundTraffic:
    """The messages of one node in one round, requests and answers alike.

    Attributes
    ----------
    sent, received : int
        Messages.
    bytes_sent, bytes_received : int
        Bytes of the encoded messages, without what TLS, HTTP/2 and TCP add.
    bytes_again : int
        Of ``bytes_received``, payload that had arrived before and was sent again, for instance
        because a connection broke within a chunk.
    """

    sent: int = 0
    received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_again: int = 0

    def __add__(self, other: RoundTraffic) -> RoundTraffic:
        mine, theirs = asdict(self), asdict(other)
        return RoundTraffic(**{name: mine[name] + theirs[name] for name in mine})

    def sentence(self) -> str:
        """Return it in words, for the line of a round."""
        again = f", {self.bytes_again:,} of them again" if self.bytes_again else ""
        return (
            f"sent {self.bytes_sent:,} bytes in {_messages(self.sent)}, received "
            f"{self.bytes_received:,} bytes in {_messages(self.received)}{again}"
        )


class Traffic:
    """Sums per round. Of one event loop: not for several threads."""

    def __init__(self) -> None:
        self._rounds: OrderedDict[int | None, RoundTraffic] = OrderedDict()

    def sent(self, size: int, round: int | None = None) -> None:
        """Count one message that leaves, of ``size`` bytes; None: of no round."""
        now = self.of(round)
        self._put(round, replace(now, sent=now.sent + 1, bytes_sent=now.bytes_sent + size))

    def received(self, size: int, round: int | None = None, again: int = 0) -> None:
        """Count one message that arrives; ``again``: bytes of payload that were here before."""
        now = self.of(round)
        self._put(
            round,
            replace(
                now,
                received=now.received + 1,
                bytes_received=now.bytes_received + size,
                bytes_again=now.bytes_again + again,
            ),
        )

    def of(self, round: int | None) -> RoundTraffic:
        """Return the sums of a round; zeros if it is unknown or long ago."""
        return self._rounds.get(round, RoundTraffic())

    def total(self) -> RoundTraffic:
        """Return the sums over the rounds that are remembered, and over what is of no round."""
        return sum(self._rounds.values(), RoundTraffic())

    def _put(self, round: int | None, sums: RoundTraffic) -> None:
        self._rounds[round] = sums
        if len(self._rounds) > _KEPT:
            oldest = next(key for key in self._rounds if key is not None)
            del self._rounds[oldest]


def _messages(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"
