"""Whether a certificate was issued by the consortium, is valid now, and whose it is."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedapp.errors import IdentityError
from fedapp.gossip.names import certified_name, dns_name
from fedapp.text import clean

MAX_CERTIFICATE = 4096
"""Most bytes of a certificate; one of a site has about 600."""
_REMEMBERED = 1024


@dataclass(frozen=True)
class Certified:
    """What a verified certificate says."""

    name: str
    key: ec.EllipticCurvePublicKey
    not_before: float  # Unix seconds
    not_after: float


class Trust:
    """The consortium's authority as the only root; nothing else is ever trusted.

    Parameters
    ----------
    authority : x509.Certificate
    """

    def __init__(self, authority: x509.Certificate) -> None:
        self._store = Store([authority])
        self._end = authority.not_valid_after_utc.timestamp()
        self._known: OrderedDict[bytes, Certified] = OrderedDict()

    def verify(self, data: bytes, now: float) -> Certified:
        """Return what the certificate ``data`` (DER) says, if the consortium vouches for it.

        Parameters
        ----------
        data : bytes
        now : float
            Unix seconds.

        Raises
        ------
        IdentityError
            If it is malformed, issued by somebody else, not valid now, or not a site's.
        """
        if len(data) > MAX_CERTIFICATE:
            raise IdentityError(
                f"a certificate has at most {MAX_CERTIFICATE} bytes, got {len(data)}"
            )
        fingerprint = hashlib.sha256(data).digest()
        certified = self._known.get(fingerprint)
        if certified is None:
            certified = self._verify(_parse(data), now)
            self._known[fingerprint] = certified
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        if not certified.not_before <= now <= certified.not_after:
            raise _outside(certified.name, certified.not_before, certified.not_after, now)
        return certified

    def _verify(self, certificate: x509.Certificate, now: float) -> Certified:
        name = certified_name(certificate)
        start = certificate.not_valid_before_utc.timestamp()
        end = certificate.not_valid_after_utc.timestamp()
        if not start <= now <= end:
            raise _outside(name, start, end, now)
        moment = datetime.fromtimestamp(now, UTC)
        policy = PolicyBuilder().store(self._store).time(moment)
        try:
            policy.build_server_verifier(x509.DNSName(dns_name(name))).verify(certificate, [])
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (VerificationError, x509.ExtensionNotFound) as error:
            raise IdentityError(
                f"the certificate of '{clean(name)}' was not issued by this consortium's "
                f"authority, or breaks its rules: {clean(str(error), 200)}"
            ) from None
        key = certificate.public_key()
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            raise IdentityError(
                f"the certificate of '{clean(name)}' must be for servers and clients, and is for "
                "servers only"
            )
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(
            key.curve, ec.SECP256R1
        ):
            raise IdentityError(
                f"the key of '{clean(name)}' must be on the curve P-256, got another kind"
            )
        return Certified(name, key, start, min(end, self._end))


def _parse(data: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(data)
        certificate.public_key()
        certificate.extensions  # noqa: B018  # parsed here, so that it cannot fail later
    except Exception as error:  # the library has many ways to say that a certificate is none
        raise IdentityError(f"a certificate cannot be read: {clean(str(error), 200)}") from None
    return certificate


def _outside(name: str, start: float, end: float, now: float) -> IdentityError:
    when = "has expired" if now > end else "is not valid yet"
    first, last, here = (
        datetime.fromtimestamp(moment, UTC).isoformat(" ", "seconds")
        for moment in (start, end, now)
    )
    return IdentityError(
        f"the certificate of '{clean(name)}' {when}: valid from {first} to {last}, it is {here} "
        "here; have the consortium issue it again, or set the clock"
    )
