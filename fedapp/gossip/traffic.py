"""What a round of one node cost on the wire: counted, recorded and printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Traffic:
    """Bytes and messages of one node in one round, or in several, see `fedapp.gossip.counters`.

    Attributes
    ----------
    sent_bytes, received_bytes : int
        Of the encoded messages, requests and answers alike, without what TLS, HTTP/2 and TCP add.
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

    def __add__(self, other: Traffic) -> Traffic:
        mine, theirs = asdict(self), asdict(other)
        return Traffic(**{name: mine[name] + theirs[name] for name in mine})

    def sentence(self) -> str:
        """Return it in words, for the line of a round."""
        again = f", {self.resent:,} bytes had to come again" if self.resent else ""
        return (
            f"sent {self.sent_bytes:,} bytes in {_messages(self.sent_messages)}, received "
            f"{self.received_bytes:,} bytes in {_messages(self.received_messages)}{again}"
        )


def _messages(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"
