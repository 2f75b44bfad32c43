"""A hospital's request to have its two public keys certified: what is checked, what is taken.

The file holds two PKCS 10 requests, one for each key and signed with it, so that nobody can ask for
a key that is not theirs. Taken are the name and the keys. Whatever else a request asks for (other
names, extensions) is left out: what a certificate says is the authority's decision alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from fedapp.errors import ProvisionError
from fedapp.provision.fingerprint import of_keys
from fedapp.small_file import read_small
from fedapp.text import clean, site_name

LONGEST_REQUEST = 16384
"""Most bytes of a signing request; one has about 900."""

_BLOCK = re.compile(
    rb"-----BEGIN CERTIFICATE REQUEST-----\r?\n[A-Za-z0-9+/=\r\n]+-----END CERTIFICATE REQUEST-----"
)


@dataclass(frozen=True)
class SigningRequest:
    """A request that is what it should be; its name is not yet known to be a member's.

    Attributes
    ----------
    name : str
    peer, node : ec.EllipticCurvePublicKey
        The key to certify (P-256), and the SuperNode's (P-384).
    pem : bytes
        Both requests again, without anything that stood around them.
    """

    name: str
    peer: ec.EllipticCurvePublicKey = field(repr=False)
    node: ec.EllipticCurvePublicKey = field(repr=False)
    pem: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> SigningRequest:
        """Read and check the file.

        Raises
        ------
        ProvisionError
            If it is missing, no such request, or not signed with the keys it is for.
        """
        data = read_small(path, LONGEST_REQUEST, "signing request", ProvisionError)
        try:
            return cls._parse(data)
        except ProvisionError as error:
            raise ProvisionError(f"{path}: {error.message}") from None

    @classmethod
    def _parse(cls, data: bytes) -> SigningRequest:
        blocks = _BLOCK.findall(data)
        if len(blocks) != 2:
            raise ProvisionError(
                f"a signing request holds two requests, one for each key, got {len(blocks)}; have "
                "it sent again, as `fedapp site keygen` made it"
            )
        requests = [_checked(block) for block in blocks]
        peer = _key(requests[0], ec.SECP256R1, "first", "P-256")
        node = _key(requests[1], ec.SECP384R1, "second", "P-384")
        names = [_name(request) for request in requests]
        if names[0] != names[1]:
            raise ProvisionError(
                f"the two requests are for '{clean(names[0])}' and '{clean(names[1])}', expected "
                "one name; have it made again"
            )
        pem = b"".join(request.public_bytes(Encoding.PEM) for request in requests)
        return cls(names[0], peer, node, pem)

    @property
    def fingerprint(self) -> str:
        """Of the two keys, to compare by telephone."""
        return of_keys(self.peer, self.node)

    def node_line(self) -> bytes:
        """Return the SuperNode's public key as Flower registers it: a line of OpenSSH."""
        return self.node.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def make_request(
    name: str, peer: ec.EllipticCurvePrivateKey, node: ec.EllipticCurvePrivateKey
) -> SigningRequest:
    """Return the request of a hospital for its two keys.

    Raises
    ------
    ProvisionError
        If ``name`` cannot be one.
    """
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site_name(name))])
    except ValueError as error:
        raise ProvisionError(f"the name '{clean(name)}' cannot be certified: {error}") from None
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    requests = [builder.sign(key, hashes.SHA256()) for key in (peer, node)]
    pem = b"".join(request.public_bytes(Encoding.PEM) for request in requests)
    return SigningRequest(name, peer.public_key(), node.public_key(), pem)


def _checked(block: bytes) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(block)
        valid = request.is_signature_valid
    except Exception as error:  # the library has many ways to say that a request is none
        raise ProvisionError(
            f"a request cannot be read: {clean(str(error), 200)}; have it sent again"
        ) from None
    if not valid:
        raise ProvisionError(
            "a request is not signed with the key that it is for: it was altered, or its sender "
            "does not have the key; have it made again"
        )
    return request


def _key(
    request: x509.CertificateSigningRequest, curve: type[ec.EllipticCurve], place: str, name: str
) -> ec.EllipticCurvePublicKey:
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, curve):
        got = (
            key.curve.name
            if isinstance(key, ec.EllipticCurvePublicKey)
            else type(key).__name__.strip("_")
        )
        raise ProvisionError(
            f"the key of the {place} request must be on the curve {name}, got {got}; have it made "
            "again with `fedapp site keygen`"
        )
    return key


def _name(request: x509.CertificateSigningRequest) -> str:
    try:
        common = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = [str(attribute.value) for attribute in common]
    except Exception as error:  # as above
        raise ProvisionError(
            f"a request's subject cannot be read: {clean(str(error), 200)}"
        ) from None
    if len(names) != 1:
        raise ProvisionError(
            f"a request must have one common name, the hospital's, got {len(names)}"
        )
    try:
        return site_name(names[0])
    except ValueError as error:
        raise ProvisionError(f"the request's common name: {error}") from None
