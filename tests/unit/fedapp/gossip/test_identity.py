"""An identity is whole and right, or there is none: no file is ever done without."""

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fedapp.errors import IdentityError
from fedapp.gossip.identity import MAX_FILE, Identity
from fedapp.gossip.names import dns_name
from fedapp.gossip.throwaway import Authority

AUTHORITY = Authority.create()


@pytest.fixture
def paths(tmp_path):
    return AUTHORITY.write(tmp_path, "Zürich")


def test_three_files_make_an_identity_named_by_its_certificate(paths):
    identity = Identity.load(*paths, name="Zürich")

    assert identity.name == "Zürich"
    assert identity.certificate not in repr(identity).encode()
    assert "PRIVATE" not in repr(identity)
    public = identity.trust.verify(identity.certificate, identity.not_after - 1).key
    assert public.curve.name == "secp256r1"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_missing_file_is_named(paths, place):
    paths[place].unlink()

    with pytest.raises(IdentityError, match=f"{paths[place].name} does not exist"):
        Identity.load(*paths)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 100, b"-----BEGIN CERTIFICATE-----"])
def test_a_file_of_something_else_is_named(paths, place, content):
    paths[place].write_bytes(content)

    with pytest.raises(IdentityError, match=f"{paths[place].name} is no"):
        Identity.load(*paths)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_folder_or_a_giant_in_place_of_a_file_is_refused(paths, place):
    paths[place].write_bytes(b"x" * (MAX_FILE + 1))
    with pytest.raises(IdentityError, match="more than"):
        Identity.load(*paths)

    paths[place].unlink()
    paths[place].mkdir()
    with pytest.raises(IdentityError, match="cannot be read"):
        Identity.load(*paths)


def test_the_key_of_another_certificate_is_refused(paths, tmp_path):
    _, other_key, _ = AUTHORITY.write(tmp_path / "other", "Zürich")

    with pytest.raises(IdentityError, match="does not belong to the certificate"):
        Identity.load(paths[0], other_key, paths[2])


def test_the_certificate_of_another_authority_is_refused(paths, tmp_path):
    _, _, other = Authority.create().write(tmp_path / "other", "Zürich")

    with pytest.raises(IdentityError, match="not issued by this consortium"):
        Identity.load(paths[0], paths[1], other)


def test_the_certificate_of_another_site_is_refused(paths):
    with pytest.raises(IdentityError, match="is for 'Zürich', expected 'Basel'"):
        Identity.load(*paths, name="Basel")


def test_an_expired_certificate_is_refused(tmp_path):
    paths = AUTHORITY.write(tmp_path, "Bern", timedelta(seconds=-1))

    with pytest.raises(IdentityError, match="has expired: valid from"):
        Identity.load(*paths)


def test_an_expired_authority_is_refused(tmp_path):
    paths = Authority.create(timedelta(seconds=-1)).write(tmp_path, "Bern")

    with pytest.raises(IdentityError, match="the authority's certificate is valid from"):
        Identity.load(*paths)


@pytest.mark.parametrize("dns", ["*.peer.fedapp.internal", "localhost", dns_name("Basel")])
def test_a_certificate_that_could_answer_for_another_name_is_refused(dns):
    with pytest.raises(IdentityError, match="must have the one alternative name"):
        Identity.from_pem(*AUTHORITY.certify("Bern", dns=dns), AUTHORITY.pem)


def test_two_certificates_in_a_file_are_refused():
    certificate, key = AUTHORITY.certify("Bern")

    with pytest.raises(IdentityError, match="must hold one certificate, got 2"):
        Identity.from_pem(certificate * 2, key, AUTHORITY.pem)


@pytest.mark.parametrize(
    ("key", "password", "finding"),
    [
        (ec.generate_private_key(ec.SECP256R1()), b"secret", "is encrypted"),
        (rsa.generate_private_key(65537, 2048), None, "must be on the curve P-256"),
    ],
)
def test_a_key_that_needs_a_password_or_is_of_another_kind_is_refused(key, password, finding):
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )

    with pytest.raises(IdentityError, match=finding):
        Identity.from_pem(AUTHORITY.certify("Bern")[0], pem, AUTHORITY.pem)
