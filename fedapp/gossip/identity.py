"""Who this node is: its certificate, its key, and the authority that it shares with its peers.

Everything fails closed: without all three, valid and belonging together, there is no identity, and
without an identity no port is opened and no peer is called.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedapp.errors import IdentityError
from fedapp.gossip.trust import Trust
from fedapp.secret_file import read_secret
from fedapp.small_file import read_small
from fedapp.text import clean

MAX_FILE = 65536
"""Most bytes of a certificate's or key's file."""


@dataclass(frozen=True)
class Identity:
    """A verified identity; see `load`, and `fedapp.gossip.throwaway` for simulations.

    Attributes
    ----------
    name : str
        The site's name: the certificate's common name.
    certificate : bytes
        DER, as it travels with every envelope.
    trust : Trust
    not_after : float
        End of the certificate's validity, Unix seconds.
    """

    name: str
    certificate: bytes = field(repr=False)
    trust: Trust = field(repr=False)
    not_after: float
    _certificate_pem: bytes = field(repr=False)
    _key_pem: bytes = field(repr=False)
    _authority_pem: bytes = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def load(
        cls, certificate: Path, key: Path, authority: Path, *, name: str | None = None
    ) -> Identity:
        """Read the three PEM files.

        Parameters
        ----------
        certificate, key, authority : Path
            The site's certificate, its private key (not encrypted), the consortium's certificate.
        name : str, optional
            The site that the certificate must be for.

        Raises
        ------
        IdentityError
            Naming the file, if one is missing, unreadable, not what it should be, expired, or does
            not belong to the others; or if the key's file is open to others on this machine.
        """
        identity = cls.from_pem(
            read_small(certificate, MAX_FILE, "certificate", IdentityError),
            read_secret(key, MAX_FILE, "private key", IdentityError),
            read_small(authority, MAX_FILE, "authority's certificate", IdentityError),
            sources=(str(certificate), str(key), str(authority)),
        )
        if name is not None and identity.name != name:
            raise IdentityError(
                f"the certificate {certificate} is for '{clean(identity.name)}', expected "
                f"'{clean(name)}'; give this site's own"
            )
        return identity

    @classmethod
    def from_pem(
        cls,
        certificate: bytes,
        key: bytes,
        authority: bytes,
        *,
        sources: tuple[str, str, str] = ("certificate", "private key", "authority"),
    ) -> Identity:
        """Take the three as PEM, see `load`; ``sources`` is what errors call them."""
        own = parse_certificate(certificate, sources[0])
        root = parse_authority(authority, sources[2])
        private = parse_private_key(key, sources[1])
        now = time.time()
        trust = Trust(root)
        der = own.public_bytes(Encoding.DER)
        try:
            certified = trust.verify(der, now)
        except IdentityError as error:
            raise IdentityError(f"{sources[0]}: {error.message}") from None
        if private.public_key() != certified.key:
            raise IdentityError(
                f"the private key {sources[1]} does not belong to the certificate {sources[0]}; "
                "give the key that the certificate was requested with"
            )
        return cls(
            certified.name, der, trust, certified.not_after, certificate, key, authority, private
        )

    def sign(self, data: bytes) -> bytes:
        """Return the ECDSA signature (SHA-256, DER) of ``data``."""
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return what a port needs that talks only to holders of a consortium certificate."""
        pairs = [(self._key_pem, self._certificate_pem)]
        return grpc.ssl_server_credentials(pairs, self._authority_pem, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return what a call needs to show this certificate and check the callee's."""
        return grpc.ssl_channel_credentials(
            self._authority_pem, self._key_pem, self._certificate_pem
        )


def parse_authority(data: bytes, source: str) -> x509.Certificate:
    """Return the consortium's certificate, valid now; ``source`` is what errors call it."""
    root = parse_certificate(data, source)
    if not root.not_valid_before_utc <= datetime.now(UTC) <= root.not_valid_after_utc:
        raise IdentityError(
            f"{source}: the authority's certificate is valid from {root.not_valid_before_utc} to "
            f"{root.not_valid_after_utc}, not now; get the consortium's present one, or set the "
            "clock"
        )
    return root


def parse_certificate(data: bytes, source: str) -> x509.Certificate:
    """Return the one certificate in ``data`` (PEM); ``source`` is what errors call it."""
    try:
        found = x509.load_pem_x509_certificates(data)
        for certificate in found:
            certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise IdentityError(
            f"{source} is no certificate in PEM form; name the right file"
        ) from None
    if len(found) != 1:
        raise IdentityError(f"{source} must hold one certificate, got {len(found)}")
    return found[0]


def parse_private_key(data: bytes, source: str) -> ec.EllipticCurvePrivateKey:
    """Return the private key in ``data`` (PEM); ``source`` is what errors call it."""
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise IdentityError(
            f"the private key {source} is encrypted; give one that can be read without a password"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise IdentityError(
            f"{source} is no private key in PEM form; name the right file"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"the private key {source} must be on the curve P-256")
    return key
