"""An authority and certificates for a simulation or a test: made in memory, gone with the process.

A real consortium has them issued, see `fedapp.gossip.identity`. What checks them is the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedapp.gossip.identity import Identity
from fedapp.gossip.names import dns_name

_BEFORE = timedelta(hours=1)


@dataclass(frozen=True)
class Authority:
    """A consortium's authority that nobody keeps.

    Attributes
    ----------
    certificate : x509.Certificate
    key : ec.EllipticCurvePrivateKey
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, lifetime: timedelta = timedelta(days=7)) -> Authority:
        """Make a new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("throw-away consortium")
        builder = _builder(subject, subject, key.public_key(), lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(_usage(issues=True), True)
        return cls(_sign(builder, key, key), key)

    @property
    def pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    def certify(
        self, name: str, lifetime: timedelta = timedelta(days=1), *, dns: str | None = None
    ) -> tuple[bytes, bytes]:
        """Return a new certificate for ``name`` and its key, both as PEM.

        Parameters
        ----------
        name : str
        lifetime : timedelta
            From now; it began an hour ago. A negative one has expired.
        dns : str, optional
            Another alternative name than the one that belongs to ``name``.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        alternative = x509.SubjectAlternativeName([x509.DNSName(dns or dns_name(name))])
        builder = _builder(_subject(name), issuer, key.public_key(), lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_usage(issues=False), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        builder = builder.add_extension(alternative, False)
        certificate = _sign(builder, self.key, key)
        return certificate.public_bytes(Encoding.PEM), _pem(key)

    def issue(self, name: str, lifetime: timedelta = timedelta(days=1)) -> Identity:
        """Return the identity of a new site, see `certify`."""
        return Identity.from_pem(*self.certify(name, lifetime), self.pem)

    def write(
        self, folder: Path, name: str, lifetime: timedelta = timedelta(days=1)
    ) -> tuple[Path, Path, Path]:
        """Certify ``name`` and write ``certificate.pem``, ``key.pem`` and ``authority.pem``."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = self.certify(name, lifetime)
        paths = tuple(folder / f"{part}.pem" for part in ("certificate", "key", "authority"))
        paths[0].write_bytes(certificate)
        paths[2].write_bytes(self.pem)
        handle = os.open(paths[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(key)
        return paths[0], paths[1], paths[2]


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lifetime) - _BEFORE)
        .not_valid_after(now + lifetime)
    )


def _usage(*, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not issues,
        key_cert_sign=issues,
        crl_sign=issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(
    builder: x509.CertificateBuilder,
    issuer: ec.EllipticCurvePrivateKey,
    subject: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    own = x509.SubjectKeyIdentifier.from_public_key(subject.public_key())
    theirs = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    builder = builder.add_extension(own, False).add_extension(theirs, False)
    return builder.sign(issuer, hashes.SHA256())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
