"""From the coordinator's file to keys, certificates and kits; the same again changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedapp.config_provision import ConsortiumFile
from fedapp.errors import ProvisionError
from fedapp.provision.authority import Authority
from fedapp.provision.fingerprint import of_certificate, same
from fedapp.provision.folder import Folder
from fedapp.provision.kits import write_kit
from fedapp.provision.members import CERTIFICATE, NODE_KEY, Certified, Members
from fedapp.provision.request import SigningRequest
from fedapp.text import clean

SUPERLINK = "superlink"
"""What the SuperLink's certificate is called where members are named."""


@dataclass(frozen=True)
class Provisioned:
    """What `provision` found and did.

    Attributes
    ----------
    new_authority : bool
    fingerprint : str
        The authority's, to compare by telephone.
    superlink : tuple of bool and datetime
        Whether the SuperLink's certificate was issued now, and its end.
    members : dict
        How it stands with each present member; None: no request has come.
    kits : tuple of str
        The members whose kits changed.
    gone : tuple of str
        Members that have left, whose certificate and SuperNode's key were withdrawn or had been.
    """

    new_authority: bool
    fingerprint: str
    superlink: tuple[bool, datetime]
    members: dict[str, Certified | None]
    kits: tuple[str, ...]
    gone: tuple[str, ...]


def provision(
    config: ConsortiumFile,
    path: Path,
    *,
    requests: Sequence[Path] = (),
    fingerprints: Sequence[str] = (),
    unseen: bool = False,
    renew: Collection[str] = (),
) -> Provisioned:
    """Make what is missing, sign what was asked for, renew what runs out, withdraw what left.

    Parameters
    ----------
    config : ConsortiumFile
    path : Path
        The consortium's folder.
    requests : sequence of Path
        Signing requests of members.
    fingerprints : sequence of str
        One for each request, in order: what the members said by telephone.
    unseen : bool
        Sign without them: whoever sits on the way of a request can have changed it.
    renew : collection of str
        Members to certify anew in any case, also with new keys; or ``superlink``.

    Raises
    ------
    FedappError
        If something is missing, wrong or in the way; nothing that is there is replaced by less.
    """
    present = [member.name for member in config.present()]
    for name in renew:
        _known(name, [*present, SUPERLINK], "--renew")
    asked = [_asked(file, present) for file in requests]
    _compare(asked, fingerprints, unseen=unseen)
    folder = Folder(path)
    with folder.held():
        authority = Authority(folder, config.name, config.certificates)
        hosts = config.coordinator.hosts()
        superlink = authority.superlink(hosts, renew=SUPERLINK in renew)
        members = Members(folder, authority)
        for request in asked:
            members.accept(request, replace=request.name in renew)
        standing = {name: members.certify(name, renew=name in renew) for name in present}
        gone = _withdraw(folder, present)
        fingerprint = of_certificate(authority.certificate)
        kits = tuple(
            name for name in present if write_kit(folder, config, name, authority.pem, fingerprint)
        )
    return Provisioned(authority.new, fingerprint, superlink, standing, kits, gone)


def _asked(path: Path, present: Sequence[str]) -> SigningRequest:
    request = SigningRequest.read(path)
    _known(request.name, present, str(path))
    return request


def _known(name: str, known: Sequence[str], source: str) -> None:
    if name not in known:
        raise ProvisionError(
            f"{source}: '{clean(name)}' is no present member; add it to the coordinator's file, or "
            f"correct the name (members: {', '.join(known)})"
        )


def _compare(
    requests: Sequence[SigningRequest], fingerprints: Sequence[str], *, unseen: bool
) -> None:
    if unseen and fingerprints:
        raise ProvisionError("expected --fingerprint or --unseen, got both; take --unseen out")
    if requests and not fingerprints and not unseen:
        # The digits are not told here: they are the member's to say.
        raise ProvisionError(
            f"the request of '{clean(requests[0].name)}' came without its fingerprint; let the "
            "member read it out by telephone and give it with --fingerprint, one for each --sign, "
            "or sign it as it is with --unseen"
        )
    if fingerprints and len(fingerprints) != len(requests):
        raise ProvisionError(
            f"expected one --fingerprint for each --sign, got {len(fingerprints)} for "
            f"{len(requests)}"
        )
    for request, said in zip(requests, fingerprints, strict=False):
        if not same(request.fingerprint, said):
            raise ProvisionError(
                f"the request of '{clean(request.name)}' has the fingerprint "
                f"{request.fingerprint}, expected {clean(said)}; do not sign it: ask the member "
                "which request it sent, and how it may have been changed"
            )


def _withdraw(folder: Folder, present: Sequence[str]) -> tuple[str, ...]:
    """Take away what members that left would be enrolled by; their requests stay, as a record."""
    gone = []
    kept = set(present)
    if folder.members.is_dir():
        for member in sorted(folder.members.iterdir()):
            if member.is_dir() and member.name not in kept:
                gone.append(member.name)
                for file in (CERTIFICATE, NODE_KEY):
                    (member / file).unlink(missing_ok=True)
                shutil.rmtree(folder.kit(member.name), ignore_errors=True)
    return tuple(gone)
