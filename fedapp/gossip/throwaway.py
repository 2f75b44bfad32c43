"""An authority and certificates for a simulation or a test: made in memory, gone with the process.

A real consortium has them issued, see `fedapp.provision`. What checks them is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedapp.certificates import Issuer, new_issuer
from fedapp.gossip.identity import Identity
from fedapp.secret_file import key_pem, replace_secret


@dataclass(frozen=True)
class Authority(Issuer):
    """A consortium's authority that nobody keeps."""

    @classmethod
    def create(cls, lifetime: timedelta = timedelta(days=7)) -> Authority:
        """Make a new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(new_issuer("throw-away consortium", key, lifetime).certificate, key)

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
        certificate = self.site(name, key.public_key(), lifetime, dns=dns)
        return certificate.public_bytes(Encoding.PEM), key_pem(key)

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
        replace_secret(paths[1], key)
        return paths[0], paths[1], paths[2]
