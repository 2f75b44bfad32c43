"""Certificates of a consortium: its authority's, its coordinator's, those of its sites.

Who keeps the keys is the caller's business: `fedapp.provision` keeps them in files,
`fedapp.gossip.throwaway` in memory. All keys are ECDSA, all signatures SHA-256.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedapp.gossip.names import dns_name

EARLIER = timedelta(hours=1)
"""How long before it is issued a certificate begins, for clocks that are behind."""


@dataclass(frozen=True)
class Issuer:
    """An authority that can sign.

    Attributes
    ----------
    certificate : x509.Certificate
    key : ec.EllipticCurvePrivateKey
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def site(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        lifetime: timedelta,
        *,
        dns: str | None = None,
    ) -> x509.Certificate:
        """Certify a site, as `fedapp.gossip.trust` wants it.

        Parameters
        ----------
        name : str
        key : ec.EllipticCurvePublicKey
            On P-256.
        lifetime : timedelta
            From now; a negative one has expired.
        dns : str, optional
            Another alternative name than the one that belongs to ``name``.
        """
        names = [x509.DNSName(dns or dns_name(name))]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._leaf(name, key, lifetime, names, usages)

    def server(
        self, name: str, key: ec.EllipticCurvePublicKey, lifetime: timedelta, hosts: Sequence[str]
    ) -> x509.Certificate:
        """Certify a server that is reached under ``hosts``, DNS names and IP addresses."""
        names = [general_name(host) for host in hosts]
        return self._leaf(name, key, lifetime, names, [ExtendedKeyUsageOID.SERVER_AUTH])

    def _leaf(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        lifetime: timedelta,
        names: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
    ) -> x509.Certificate:
        builder = _builder(_subject(name), self.certificate.subject, key, lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_usage(issues=False), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return _sign(builder, self.key, key)


def new_issuer(name: str, key: ec.EllipticCurvePrivateKey, lifetime: timedelta) -> Issuer:
    """Return an authority of its own: the root that a consortium trusts, and nothing else."""
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key(), lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(_usage(issues=True), True)
    return Issuer(_sign(builder, key, key.public_key()), key)


def general_name(host: str) -> x509.DNSName | x509.IPAddress:
    """Return ``host`` as a certificate's alternative name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


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
        .not_valid_before(min(now, now + lifetime) - EARLIER)
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
    subject: ec.EllipticCurvePublicKey,
) -> x509.Certificate:
    own = x509.SubjectKeyIdentifier.from_public_key(subject)
    theirs = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    builder = builder.add_extension(own, False).add_extension(theirs, False)
    return builder.sign(issuer, hashes.SHA256())
