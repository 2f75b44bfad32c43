"""An envelope with its origin's signature and certificate: proof of origin that needs no sender.

C may get A's update from B. It believes A's signature alone, and knows A's key by the certificate
that travels along and that the consortium's authority issued.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from fedapp.errors import EnvelopeRefused, IdentityError
from fedapp.gossip.envelope import Envelope
from fedapp.gossip.identity import Identity
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.trust import MAX_CERTIFICATE, Trust
from fedapp.text import clean

DOMAIN = b"fedapp gossip envelope v1\0"
"""Before what is signed, so that a signature means this and nothing else."""
MAX_LIFETIME = 7 * 86400.0
"""Seconds; an origin can promise no longer."""
MAX_SIGNATURE = 80
"""Most bytes of an ECDSA signature on P-256 in DER; one has 70 to 72."""


@dataclass(frozen=True)
class Signed:
    """An envelope and what proves its origin; from `sign`, or from `verify`."""

    envelope: Envelope
    id: bytes
    message: gossip_pb2.SignedEnvelope

    def to_bytes(self) -> bytes:
        """Return it as it is kept on disk."""
        return bytes(self.message.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class Rules:
    """What an envelope must fulfil besides being signed.

    Attributes
    ----------
    run : str
    members : collection of str
        Names of the consortium's sites.
    max_size : int
        Most bytes of a payload.
    skew : float
        Seconds by which another site's clock may differ.
    """

    run: str
    members: Collection[str]
    max_size: int
    skew: float


def sign(envelope: Envelope, identity: Identity) -> Signed:
    """Sign ``envelope`` with the key of its origin's certificate."""
    data = envelope.to_bytes()
    message = gossip_pb2.SignedEnvelope(
        envelope=data,
        signature=identity.sign(_signed_bytes(data, identity.certificate)),
        certificate=identity.certificate,
    )
    return Signed(envelope, envelope.id, message)


def parse(data: bytes) -> gossip_pb2.SignedEnvelope:
    """Read `Signed.to_bytes`, still unverified.

    Raises
    ------
    EnvelopeRefused
        "malformed"
    """
    try:
        message: gossip_pb2.SignedEnvelope = gossip_pb2.SignedEnvelope.FromString(data)
    except DecodeError:
        raise EnvelopeRefused("a signed envelope cannot be read", reason="malformed") from None
    return message


def verify(message: gossip_pb2.SignedEnvelope, trust: Trust, rules: Rules, now: float) -> Signed:
    """Return the envelope, if its origin signed it and it is acceptable now.

    Parameters
    ----------
    message : SignedEnvelope
    trust : Trust
        The consortium's authority.
    rules : Rules
    now : float
        Unix seconds.

    Raises
    ------
    EnvelopeRefused
        With one of ``REASONS``; ``site`` is the origin that the envelope claims.
    """
    envelope = Envelope.from_bytes(message.envelope)

    def refuse(reason: str, sentence: str) -> EnvelopeRefused:
        return EnvelopeRefused(sentence, reason=reason, site=envelope.origin, round=envelope.round)

    if len(message.signature) > MAX_SIGNATURE or len(message.certificate) > MAX_CERTIFICATE:
        raise refuse("malformed", "its signature or certificate is longer than any can be")
    if envelope.origin not in rules.members:
        raise refuse(
            "unknown-origin",
            "the origin is not in this node's consortium file; add the site, or ask who it is",
        )
    try:
        certified = trust.verify(message.certificate, now)
    except IdentityError as error:
        raise refuse("bad-certificate", error.message) from None
    if certified.name != envelope.origin:
        raise refuse(
            "bad-certificate",
            f"the certificate that came along is that of '{clean(certified.name)}', expected "
            "the origin's",
        )
    try:
        certified.key.verify(
            message.signature,
            _signed_bytes(message.envelope, message.certificate),
            ec.ECDSA(hashes.SHA256()),
        )
    except InvalidSignature:
        raise refuse(
            "bad-signature", "the signature is not the origin's over this envelope"
        ) from None
    # From here on the origin itself said what follows.
    if envelope.run != rules.run:
        raise refuse("wrong-run", f"the update belongs to run {envelope.run}, expected {rules.run}")
    if envelope.size > rules.max_size:
        raise refuse(
            "oversized",
            f"the update has {envelope.size} bytes, at most {rules.max_size} are accepted; raise "
            "gossip.max-payload-mb if that is right",
        )
    check_time(envelope, rules.skew, now)
    # Built anew: what a peer wrote around the three fields is not passed on.
    plain = gossip_pb2.SignedEnvelope(
        envelope=message.envelope, signature=message.signature, certificate=message.certificate
    )
    return Signed(envelope, envelope.id, plain)


def _signed_bytes(envelope: bytes, certificate: bytes) -> bytes:
    # The certificate too: DER as libraries read it leaves some bits free.
    return DOMAIN + hashlib.sha256(certificate).digest() + envelope


def check_time(envelope: Envelope, skew: float, now: float) -> None:
    """Refuse an envelope that is not valid ``now``, with ``skew`` seconds of tolerance.

    Raises
    ------
    EnvelopeRefused
        "expired", "from-the-future" or "long-lived"
    """
    created, expiry = envelope.created / 1000, envelope.expiry / 1000
    findings = {
        "long-lived": (
            expiry - created > MAX_LIFETIME,
            f"the envelope is valid for {expiry - created:.0f} s, at most {MAX_LIFETIME:.0f} s "
            "are accepted",
        ),
        "expired": (
            now > expiry + skew,
            f"the envelope expired {now - expiry:.0f} s ago, {skew:.0f} s are tolerated; the site "
            "must publish again, or one of the two clocks is wrong",
        ),
        "from-the-future": (
            created > now + skew,
            f"the envelope was made {created - now:.0f} s from now, {skew:.0f} s are tolerated; "
            "one of the two clocks is wrong",
        ),
    }
    envelope.refuse_if(findings)
