"""Digests that two people can compare by telephone."""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def fingerprint(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as sixteen groups of four hexadecimal digits."""
    digits = hashlib.sha256(data).hexdigest().upper()
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def same(one: str, other: str) -> bool:
    """Whether two fingerprints are equal, however they are spaced and written."""
    plain = ["".join(c for c in text.lower() if c not in " :-\t\r\n") for text in (one, other)]
    return plain[0] == plain[1]


def of_certificate(certificate: x509.Certificate) -> str:
    """Return a certificate's fingerprint: what ``openssl x509 -fingerprint -sha256`` prints."""
    return fingerprint(certificate.public_bytes(Encoding.DER))


def of_keys(*keys: ec.EllipticCurvePublicKey) -> str:
    """Return the fingerprint of public keys in an order."""
    return fingerprint(b"".join(spki(key) for key in keys))


def spki(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as DER (SubjectPublicKeyInfo), the same for the same key."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
