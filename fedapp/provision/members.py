"""What the coordinator knows of a member: its request, the certificate issued for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedapp.errors import IdentityError, ProvisionError
from fedapp.gossip.identity import MAX_FILE, parse_certificate
from fedapp.gossip.names import certified_name
from fedapp.provision.authority import Authority
from fedapp.provision.fingerprint import spki
from fedapp.provision.folder import Folder, put
from fedapp.provision.request import SigningRequest
from fedapp.small_file import read_small
from fedapp.text import clean

REQUEST, CERTIFICATE, NODE_KEY = "request.pem", "certificate.pem", "supernode.pub"


@dataclass(frozen=True)
class Certified:
    """How it stands with a member's certificate.

    Attributes
    ----------
    issued : bool
        Whether it was issued just now.
    until : datetime
    fingerprint : str
        Of the member's keys.
    """

    issued: bool
    until: datetime
    fingerprint: str


class Members:
    """The members' files in a consortium's folder.

    Parameters
    ----------
    folder : Folder
    authority : Authority
    """

    def __init__(self, folder: Folder, authority: Authority) -> None:
        self._folder, self._authority = folder, authority

    def accept(self, request: SigningRequest, *, replace: bool = False) -> None:
        """Take a member's request, whose name and fingerprint somebody has checked.

        Raises
        ------
        ProvisionError
            If the member has other keys and they are not to be replaced, or a key is another's.
        """
        own = self.request(request.name)
        if own is not None and own.pem != request.pem and _keys(own) == _keys(request):
            return  # the same keys asked for again: the first request stays
        if own is not None and _keys(own) != _keys(request) and not replace:
            raise ProvisionError(
                f"'{clean(request.name)}' has other keys already (fingerprint {own.fingerprint}); "
                f"if it has made new ones, ask it by telephone and add --renew "
                f'"{clean(request.name)}"'
            )
        self._refuse_shared(request)
        folder = self._folder.member(request.name)
        put(folder / REQUEST, request.pem)

    def request(self, name: str) -> SigningRequest | None:
        """Return the accepted request of a member, if there is one."""
        path = self._folder.member(name) / REQUEST
        if not path.exists():
            return None
        request = SigningRequest.read(path)
        if request.name != name:
            raise ProvisionError(
                f"{path} is the request of '{clean(request.name)}', expected '{clean(name)}'; "
                "put the right one there"
            )
        return request

    def certify(self, name: str, *, renew: bool = False) -> Certified | None:
        """See that a member with a request has a certificate that lasts; None without a request.

        Parameters
        ----------
        name : str
        renew : bool
            Issue it anew in any case.
        """
        request = self.request(name)
        if request is None:
            return None
        folder = self._folder.member(name)
        put(folder / NODE_KEY, request.node_line())
        present = self._present(request)
        if present is not None and not renew:
            return Certified(False, present.not_valid_after_utc, request.fingerprint)
        authority = self._authority
        certificate = authority.issuer().site(name, request.peer, authority.lifetime())
        put(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        return Certified(True, certificate.not_valid_after_utc, request.fingerprint)

    def _present(self, request: SigningRequest) -> x509.Certificate | None:
        path = self._folder.member(request.name) / CERTIFICATE
        if not path.exists():
            return None
        try:
            pem = read_small(path, MAX_FILE, "certificate", IdentityError)
            certificate = parse_certificate(pem, str(path))
            certificate.verify_directly_issued_by(self._authority.certificate)
            named = certified_name(certificate)
        except Exception:  # unreadable, or of another authority: a new one is issued
            return None
        fits = named == request.name and certificate.public_key() == request.peer
        return certificate if fits and self._authority.lasts(certificate) else None

    def _refuse_shared(self, request: SigningRequest) -> None:
        """Two members with one key could each speak as the other."""
        taken: dict[bytes, str] = {}
        for path in sorted(self._folder.members.glob(f"*/{REQUEST}")):
            if path.parent.name != request.name:
                other = SigningRequest.read(path)
                taken |= dict.fromkeys(_keys(other), clean(other.name))
        for key in _keys(request):
            if key in taken:
                raise ProvisionError(
                    f"the request of '{clean(request.name)}' is for a key of '{taken[key]}'; every "
                    "member makes its own with `fedapp site keygen`"
                )


def _keys(request: SigningRequest) -> tuple[bytes, bytes]:
    return spki(request.peer), spki(request.node)
