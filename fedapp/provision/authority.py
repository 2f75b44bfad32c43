"""The consortium's authority and the SuperLink's certificate, as files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedapp.certificates import Issuer, general_name, new_issuer
from fedapp.config_provision import CertificatesSection
from fedapp.errors import IdentityError, ProvisionError
from fedapp.gossip.identity import MAX_FILE, parse_authority, parse_certificate
from fedapp.provision.folder import Folder, put
from fedapp.provision.keys import read_peer_key
from fedapp.secret_file import create_secret, key_pem
from fedapp.small_file import read_small

_SUPERLINK = "coordinator"
_SECRET_BYTES = 32


class Authority:
    """The authority of a folder; made with it, and never made twice.

    Parameters
    ----------
    folder : Folder
    name : str
        The consortium's.
    times : CertificatesSection

    Raises
    ------
    IdentityError, ProvisionError
        If a file is missing of which the other half is there, wrong, or open to others.
    """

    def __init__(self, folder: Folder, name: str, times: CertificatesSection) -> None:
        self._folder, self._times = folder, times
        self.new = not os.path.lexists(folder.authority)
        if self.new:
            self._create(name)
        pem = read_small(folder.authority, MAX_FILE, "authority's certificate", IdentityError)
        self.certificate = parse_authority(pem, str(folder.authority))
        named = self.certificate.subject.rfc4514_string()
        expected = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        if self.certificate.subject != expected:
            raise ProvisionError(
                f"{folder.authority} is the authority of '{named}', expected "
                f"'{expected.rfc4514_string()}'; give the folder of this consortium (--to), or an "
                "empty one"
            )
        self.pem = pem

    def issuer(self) -> Issuer:
        """Return the authority with its key, to sign with.

        Raises
        ------
        IdentityError, ProvisionError
            If the key is not there, or not that of the certificate.
        """
        path = self._folder.authority_key
        if not path.exists():
            raise ProvisionError(
                f"something must be signed and the authority's key {path} is not there; bring it "
                "back from where it is kept and run this again"
            )
        key = read_peer_key(path)
        if key.public_key() != self.certificate.public_key():
            raise ProvisionError(
                f"the key {path} does not belong to {self._folder.authority}; bring back the right "
                "one"
            )
        return Issuer(self.certificate, key)

    def lifetime(self) -> timedelta:
        """Return how long a certificate issued now is valid: no longer than the authority."""
        left = self.certificate.not_valid_after_utc - datetime.now(UTC)
        return min(timedelta(days=self._times.days), left)

    def lasts(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate is valid, and will be for ``renew-before`` days."""
        now = datetime.now(UTC)
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        margin = timedelta(days=self._times.renew_before)
        # One that ends with the authority cannot be bettered.
        enough = end - now > margin or end >= self.certificate.not_valid_after_utc
        return start <= now < end and enough

    def superlink(self, hosts: Sequence[str], *, renew: bool = False) -> tuple[bool, datetime]:
        """Make the SuperLink's key and certificate, or a new certificate if this one will not do.

        Parameters
        ----------
        hosts : sequence of str
            All its names and addresses; others than in the certificate make a new one.
        renew : bool
            Issue it anew in any case.

        Returns
        -------
        bool, datetime
            Whether a certificate was issued, and its end.
        """
        folder = self._folder
        if not os.path.lexists(folder.superlink_key):
            pem = key_pem(ec.generate_private_key(ec.SECP256R1()))
            create_secret(folder.superlink_key, pem, "private key", ProvisionError)
        if not os.path.lexists(folder.executor_secret):
            secret = secrets.token_bytes(_SECRET_BYTES)
            create_secret(folder.executor_secret, secret, "secret", ProvisionError)
        key = read_peer_key(folder.superlink_key).public_key()
        present = self._present(key, hosts)
        if present is not None and not renew:
            return False, present.not_valid_after_utc
        certificate = self.issuer().server(_SUPERLINK, key, self.lifetime(), hosts)
        put(folder.superlink, certificate.public_bytes(Encoding.PEM))
        return True, certificate.not_valid_after_utc

    def _present(
        self, key: ec.EllipticCurvePublicKey, hosts: Sequence[str]
    ) -> x509.Certificate | None:
        path = self._folder.superlink
        if not path.exists():
            return None
        certificate = parse_certificate(
            read_small(path, MAX_FILE, "SuperLink's certificate", IdentityError), str(path)
        )
        try:
            certificate.verify_directly_issued_by(self.certificate)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except Exception:  # of another authority, or malformed: a new one is issued
            return None
        fits = certificate.public_key() == key and set(names.value) == {
            general_name(host) for host in hosts
        }
        return certificate if fits and self.lasts(certificate) else None

    def _create(self, name: str) -> None:
        folder = self._folder
        # The key first: after a kill between the two, it gets its certificate here.
        if not os.path.lexists(folder.authority_key):
            pem = key_pem(ec.generate_private_key(ec.SECP256R1()))
            create_secret(folder.authority_key, pem, "private key", ProvisionError)
        key = read_peer_key(folder.authority_key)
        issuer = new_issuer(name, key, timedelta(days=self._times.authority_days))
        put(folder.authority, issuer.certificate.public_bytes(Encoding.PEM))
