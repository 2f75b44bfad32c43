"""What an origin promises about one update, written in exactly one way.

A signature is over bytes. Two ways to write one envelope would be two signatures, two identities
and two places for a lie, so what is received must be, bit for bit, what `Envelope.to_bytes` writes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from google.protobuf.message import DecodeError

from fedapp.errors import EnvelopeRefused
from fedapp.gossip.chunks import MAX_CHUNK, MIN_CHUNK, Grid
from fedapp.gossip.proto import gossip_pb2
from fedapp.text import clean, shown, site_name

VERSION = 1
MAX_ENVELOPE = 1024
"""Most bytes of an envelope; one has about 230."""
MAX_ROUND = 1_000_000
MAX_SIZE = 10**12
_NONCE_BYTES = 16
_RUN = re.compile(r"[0-9a-f]{32}")
_CODEC = re.compile(r"[a-z][a-z0-9-]{0,15}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LAST_MOMENT = 253402300799000  # ms; the end of the year 9999


@dataclass(frozen=True)
class Envelope:
    """The signed description of an update.

    Attributes
    ----------
    run : str
        Identity of the run, 32 hexadecimal digits.
    round : int
        From 1.
    origin : str
        Name of the site that trained.
    layout_digest : str
        SHA-256 of the adapter's layout, in hexadecimal.
    payload_digest : str
        Digest of the payload as `fedapp.gossip.chunks` defines it, in hexadecimal.
    size : int
        Bytes of the payload, at least 1.
    chunk : int
        Bytes of every chunk but the last.
    codec : str
        Number format of the payload, ``"fp32"`` for instance; whoever decodes it judges it.
    nonce : str
        16 random bytes, in hexadecimal.
    created, expiry : int
        Unix time in ms by the origin's clock.

    Raises
    ------
    EnvelopeRefused
        If a field is out of its bounds.
    """

    run: str
    round: int
    origin: str
    layout_digest: str
    payload_digest: str
    size: int
    chunk: int
    codec: str
    nonce: str
    created: int
    expiry: int

    def __post_init__(self) -> None:
        try:
            site_name(self.origin)
        except ValueError as error:
            self._refuse("origin", str(error))
        if not _RUN.fullmatch(self.run):
            self._refuse("run", f"must be 32 hexadecimal digits, got {shown(self.run)}")
        for field in ("layout_digest", "payload_digest"):
            if not _DIGEST.fullmatch(getattr(self, field)):
                self._refuse(field, f"must be a SHA-256, got {shown(getattr(self, field))}")
        if not _RUN.fullmatch(self.nonce):
            self._refuse("nonce", f"must have {_NONCE_BYTES} bytes, got {shown(self.nonce)}")
        if not _CODEC.fullmatch(self.codec):
            self._refuse("codec", f"must be a short name, got {shown(self.codec)}")
        bounds = {
            "round": (1, MAX_ROUND),
            "size": (1, MAX_SIZE),
            "chunk": (MIN_CHUNK, MAX_CHUNK),
            "created": (0, _LAST_MOMENT),
            "expiry": (self.created + 1, _LAST_MOMENT),
        }
        for field, (least, most) in bounds.items():
            value = getattr(self, field)
            if not least <= value <= most:
                self._refuse(field, f"must be from {least} to {most}, got {value}")

    @property
    def grid(self) -> Grid:
        """Where the payload's chunks begin and end."""
        return Grid(self.size, self.chunk)

    @property
    def id(self) -> bytes:
        """SHA-256 of the envelope: what it is asked for by."""
        return hashlib.sha256(self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """Return the one way in which this envelope is written."""
        message = gossip_pb2.Envelope(
            version=VERSION,
            run=self.run,
            round=self.round,
            origin=self.origin,
            layout_digest=bytes.fromhex(self.layout_digest),
            payload_digest=bytes.fromhex(self.payload_digest),
            size=self.size,
            chunk=self.chunk,
            codec=self.codec,
            nonce=bytes.fromhex(self.nonce),
            created=self.created,
            expiry=self.expiry,
        )
        return bytes(message.SerializeToString(deterministic=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read what `to_bytes` wrote, and nothing else.

        Raises
        ------
        EnvelopeRefused
            "malformed"
        """
        if len(data) > MAX_ENVELOPE:
            _malformed(f"an envelope has at most {MAX_ENVELOPE} bytes, got {len(data)}")
        try:
            message = gossip_pb2.Envelope.FromString(data)
        except DecodeError:
            _malformed("an envelope cannot be read")
        if message.version != VERSION:
            _malformed(
                f"an envelope has format {message.version}, expected {VERSION}; run the same "
                "fedapp version everywhere"
            )
        envelope = cls(
            run=message.run,
            round=message.round,
            origin=message.origin,
            layout_digest=message.layout_digest.hex(),
            payload_digest=message.payload_digest.hex(),
            size=message.size,
            chunk=message.chunk,
            codec=message.codec,
            nonce=message.nonce.hex(),
            created=message.created,
            expiry=message.expiry,
        )
        if envelope.to_bytes() != data:
            _malformed("an envelope is written in another way than the agreed one")
        return envelope

    def refuse_if(self, findings: Mapping[str, tuple[bool, str]]) -> None:
        """Raise EnvelopeRefused for the first finding that holds: by reason, whether, sentence."""
        for reason, (found, sentence) in findings.items():
            if found:
                raise EnvelopeRefused(sentence, reason=reason, site=self.origin, round=self.round)

    def _refuse(self, field: str, finding: str) -> NoReturn:
        _malformed(f"field '{field}' of the envelope of '{clean(self.origin)}' {finding}")


def new_nonce() -> str:
    """Draw a nonce."""
    return secrets.token_hex(_NONCE_BYTES)


def _malformed(sentence: str) -> NoReturn:
    raise EnvelopeRefused(sentence, reason="malformed")
