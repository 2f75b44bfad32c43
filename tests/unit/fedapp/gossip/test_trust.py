"""Whose a certificate is, and until when."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedapp.errors import IdentityError
from fedapp.gossip.names import certified_name, dns_name
from fedapp.gossip.throwaway import Authority
from fedapp.gossip.trust import MAX_CERTIFICATE, Trust

AUTHORITY = Authority.create()
NOW = datetime.now(UTC).timestamp()


def der(name="Bern", authority=AUTHORITY, **options):
    pem, _ = authority.certify(name, **options)
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def test_a_certificate_is_believed_while_it_is_valid_and_not_longer():
    trust, data = Trust(AUTHORITY.certificate), der()

    assert trust.verify(data, NOW).name == "Bern"
    with pytest.raises(IdentityError, match="has expired"):
        trust.verify(data, NOW + 2 * 86400)  # it is known already, and expires nevertheless
    with pytest.raises(IdentityError, match="is not valid yet"):
        trust.verify(data, NOW - 86400)


def test_a_certificate_ends_with_its_authority():
    authority = Authority.create(timedelta(hours=1))
    trust, data = Trust(authority.certificate), der(authority=authority)

    now = datetime.now(UTC).timestamp()
    assert trust.verify(data, now).not_after <= now + 3600
    with pytest.raises(IdentityError, match="has expired"):
        trust.verify(data, now + 3605)


def test_another_authority_of_the_same_name_is_not_believed():
    with pytest.raises(IdentityError, match="not issued by this consortium"):
        Trust(AUTHORITY.certificate).verify(der(authority=Authority.create()), NOW)


def test_a_site_cannot_issue_certificates():
    pem, key_pem = AUTHORITY.certify("Basel")
    basel = Authority(x509.load_pem_x509_certificate(pem), load_pem_private_key(key_pem, None))

    with pytest.raises(IdentityError, match="not issued by this consortium"):
        Trust(AUTHORITY.certificate).verify(der(authority=basel), NOW)


@pytest.mark.parametrize("place", [10, 100, 300, -10])
def test_an_altered_byte_is_noticed(place):
    data = bytearray(der())
    data[place] ^= 1

    with pytest.raises(IdentityError):
        Trust(AUTHORITY.certificate).verify(bytes(data), NOW)


def test_a_certificate_that_is_none_or_too_long_is_refused():
    trust = Trust(AUTHORITY.certificate)

    with pytest.raises(IdentityError, match="cannot be read"):
        trust.verify(b"", NOW)
    with pytest.raises(IdentityError, match="at most"):
        trust.verify(b"\x30" * (MAX_CERTIFICATE + 1), NOW)


def test_names_of_any_script_have_dns_names_that_differ():
    names = ["Zürich", "Zurich", "病院", "a" * 64, "*"]

    assert len({dns_name(name) for name in names}) == len(names)
    for name in names:
        assert dns_name(name).isascii()
        assert Trust(AUTHORITY.certificate).verify(der(name), NOW).name == name


@pytest.mark.parametrize("names", [[], ["Bern", "Basel"], ["Be\u202ern"]])
def test_a_subject_without_one_plain_name_is_refused(names):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("a.b")]), False)
        .sign(key, hashes.SHA256())
    )

    with pytest.raises(IdentityError, match="common name"):
        certified_name(certificate)
