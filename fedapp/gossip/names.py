"""A site's name in its certificate: the subject's common name, bound to one DNS name.

TLS compares DNS names alone, and a hospital's name is none ("Zürich"). So a certificate has,
besides the common name, exactly one alternative name: a digest of it below a domain that exists
nowhere. A wildcard or a second name would let one certificate speak for several sites.
"""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedapp.errors import IdentityError
from fedapp.text import clean, site_name

DOMAIN = "peer.fedapp.internal"
LONGEST_COMMON_NAME = 64  # X.520


def dns_name(name: str) -> str:
    """Return the DNS name that stands for ``name`` in its certificate."""
    return f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.{DOMAIN}"


def certified_name(certificate: x509.Certificate) -> str:
    """Return the site that ``certificate`` names, without asking who issued it.

    Raises
    ------
    IdentityError
        If it has not exactly one common name and the one DNS name that belongs to it.
    """
    try:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = [str(attribute.value) for attribute in common]
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        alternatives = list(extension.value)
    except Exception:  # the library has many ways to say that an extension is malformed
        raise IdentityError(
            "the certificate's subject cannot be read, or it has no alternative name; have the "
            "consortium issue it again"
        ) from None
    if len(names) != 1:
        raise IdentityError(
            f"the certificate must have one common name, the site's, got {len(names)}"
        )
    try:
        name = site_name(names[0])
    except ValueError as error:
        raise IdentityError(f"the certificate's common name: {error}") from None
    if alternatives != [x509.DNSName(dns_name(name))]:
        raise IdentityError(
            f"the certificate of '{clean(name)}' must have the one alternative name "
            f"{dns_name(name)}; have the consortium issue it again"
        )
    return name
