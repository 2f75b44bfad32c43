"""Why something that a peer sent was refused: stable names, and a bounded list of what happened."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fedapp.errors import EnvelopeRefused

REASONS: dict[str, str] = {
    "malformed": "the envelope cannot be read, or is not written in the one agreed way",
    "bad-certificate": "the certificate is not the consortium's, not valid now, or another site's",
    "unknown-origin": "the origin is not a member of the consortium",
    "bad-signature": "the signature is not the origin's over these bytes",
    "wrong-run": "the envelope belongs to another run",
    "wrong-round": "the envelope belongs to another round than was asked for",
    "old-round": "a newer update of the origin was accepted already",
    "replayed": "the envelope's nonce was used before",
    "second-update": "the origin signed another update for the same round",
    "own-name": "another node signs updates with this site's name",
    "expired": "the envelope's time is over",
    "from-the-future": "the envelope was made later than now, beyond the clocks' tolerance",
    "long-lived": "the envelope is valid for longer than any envelope may be",
    "oversized": "the payload is larger than the limits allow",
    "wrong-manifest": "the digests of the chunks are not those that the origin signed",
    "wrong-chunk": "a chunk has another length, place or digest than the origin signed",
}
_REMEMBERED = 1000


@dataclass(frozen=True)
class Refusal:
    """One thing that was refused.

    Attributes
    ----------
    peer : str
        Who sent it.
    origin : str
        Whose update it claims to be; empty: not known.
    round : int
        The round that this node was in.
    reason : str
        One of `REASONS`.
    sentence : str
    """

    peer: str
    origin: str
    round: int
    reason: str
    sentence: str


class Refusals:
    """The newest refusals; older ones are counted."""

    def __init__(self) -> None:
        self._list: deque[Refusal] = deque(maxlen=_REMEMBERED)
        self.count = 0

    def add(self, peer: str, round: int, error: EnvelopeRefused) -> Refusal:
        """Remember what ``peer`` did wrong in ``round``, and return it."""
        refusal = Refusal(peer, error.site or "", round, error.reason, error.message)
        self._list.append(refusal)
        self.count += 1
        return refusal

    def of_round(self, round: int) -> list[Refusal]:
        """Return what is remembered of ``round``."""
        return [refusal for refusal in self._list if refusal.round == round]

    def all(self) -> list[Refusal]:
        """Return all that are remembered, oldest first."""
        return list(self._list)
