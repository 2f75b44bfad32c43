"""What a stranger's signing request may hold, and what of it is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from provisioning import Coordinator

from fedapp.errors import ProvisionError
from fedapp.provision.request import LONGEST_REQUEST, SigningRequest, make_request

PEER, NODE = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
GOOD = make_request("Basel", PEER, NODE)


def csr(key: Any, *names: str, extensions: tuple[x509.ExtensionType, ...] = ()) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def read(tmp_path: Path, data: bytes) -> SigningRequest:
    (tmp_path / "request.pem").write_bytes(data)
    return SigningRequest.read(tmp_path / "request.pem")


def test_what_stands_around_it_is_left_out(tmp_path: Path) -> None:
    windows = GOOD.pem.replace(b"\n", b"\r\n")
    request = read(tmp_path, b"Dear coordinator,\r\n" + windows + b"Greetings\n")
    assert request.pem == GOOD.pem
    assert request.fingerprint == GOOD.fingerprint


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds two requests, one for each key, got 0"),
        (b"\x00\xff" * 50, "got 0"),
        (csr(PEER, "Basel"), "got 1"),
        (GOOD.pem * 2, "got 4"),
        (csr(NODE, "Basel") + csr(PEER, "Basel"), "first request must be on the curve P-256, got"),
        (csr(PEER, "Basel") + csr(PEER, "Basel"), "second request must be on the curve P-384, got"),
        (csr(rsa.generate_private_key(65537, 2048), "B") + csr(NODE, "B"), "got RSAPublicKey"),
        (csr(ed25519.Ed25519PrivateKey.generate(), "B") + csr(NODE, "B"), "got Ed25519PublicKey"),
        (csr(PEER, "Basel") + csr(NODE, "Bern"), "for 'Basel' and 'Bern', expected one name"),
        (csr(PEER) + csr(NODE), "must have one common name, the hospital's, got 0"),
        (csr(PEER, "Basel", "Bern") + csr(NODE, "Basel"), "got 2"),
        (csr(PEER, "B\nasel") + csr(NODE, "B\nasel"), "common name: a site's name must have"),
        (b"x" * (LONGEST_REQUEST + 1), "more than"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_request_is_one_sentence_that_names_the_file(
    tmp_path: Path, data: bytes, words: str
) -> None:
    with pytest.raises(ProvisionError) as caught:
        read(tmp_path, data)
    assert words in str(caught.value)
    assert "request.pem" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_anothers_cannot_be_asked_for(tmp_path: Path) -> None:
    """A request for somebody's public key would have to be signed with the private one."""
    import base64

    blocks = GOOD.pem.split(b"-----END CERTIFICATE REQUEST-----\n")
    lines = blocks[0].splitlines()[1:]
    der = bytearray(base64.b64decode(b"".join(lines)))
    other = ec.generate_private_key(ec.SECP256R1()).public_key().public_numbers()
    mine = PEER.public_key().public_numbers()
    place = bytes(der).index(mine.x.to_bytes(32, "big"))
    der[place : place + 64] = other.x.to_bytes(32, "big") + other.y.to_bytes(32, "big")
    forged = (
        b"-----BEGIN CERTIFICATE REQUEST-----\n"
        + base64.encodebytes(bytes(der))
        + b"-----END CERTIFICATE REQUEST-----\n"
    )
    with pytest.raises(ProvisionError, match="not signed with the key that it is for"):
        read(tmp_path, forged + blocks[1] + b"-----END CERTIFICATE REQUEST-----\n")


def test_extensions_that_are_asked_for_are_not_given(tmp_path: Path) -> None:
    greedy = (
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("superlink"), x509.DNSName("*.example.org")]),
    )
    coordinator = Coordinator(tmp_path)
    (tmp_path / "r.pem").write_bytes(
        csr(PEER, "Basel", extensions=greedy) + csr(NODE, "Basel", extensions=greedy)
    )

    coordinator.provision(tmp_path / "r.pem")

    path = coordinator.folder.kit("Basel") / "certificate.pem"
    given_ = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    assert not given_.get_extension_for_class(x509.BasicConstraints).value.ca
    names = given_.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [n.value.partition(".")[2] for n in names] == ["peer.fedapp.internal"]


@given(place=st.integers(0, len(GOOD.pem) - 1), byte=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_is_refused_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    data = bytearray(GOOD.pem)
    data[place] = byte
    path = tmp_path_factory.getbasetemp() / "mutated.pem"
    path.write_bytes(bytes(data))
    try:
        request = SigningRequest.read(path)
    except ProvisionError:
        return
    assert request.fingerprint == GOOD.fingerprint
    assert request.name == "Basel"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, "Zu\u0308rich"])
def test_a_name_that_nobody_can_have_is_not_asked_for(name: str) -> None:
    with pytest.raises(ProvisionError, match="cannot be certified"):
        make_request(name, PEER, NODE)


def test_a_name_that_is_too_long_for_a_certificate_is_a_sentence() -> None:
    with pytest.raises(ProvisionError, match="cannot be certified"):
        make_request("x" * 80, PEER, NODE)
