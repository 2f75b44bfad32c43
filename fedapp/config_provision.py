"""The coordinator's file: who belongs to the consortium, where the coordinator is reached."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from fedapp.config_peer import Consortium, MemberSection, Name, Network
from fedapp.config_section import Section, setting
from fedapp.gossip.membership import is_address
from fedapp.gossip.names import DOMAIN, LONGEST_COMMON_NAME
from fedapp.section_file import read_section
from fedapp.text import clean

INSIDE = ("superlink", "coordinator", "localhost", "127.0.0.1")
"""Names of the coordinator between its own containers and on its own machine."""

_FOLDER = re.compile(r"\w(?:[\w .-]*\w)?")
_DNS = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")  # fmt: skip  # noqa: E501
_IMAGE = r"^[a-z0-9][a-zA-Z0-9._/:@-]*$"


def _certifiable(name: str) -> str:
    if len(name) > LONGEST_COMMON_NAME or not _FOLDER.fullmatch(name):
        raise ValueError(
            f"a member's name is a certificate's and a folder's: expected at most "
            f"{LONGEST_COMMON_NAME} letters, digits, spaces, dots, hyphens and underscores, with a "
            f"letter or digit at both ends, got '{clean(name)}'"
        )
    return name


def _host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS.fullmatch(host) or host.rpartition(".")[2].isdigit():
        raise ValueError(
            "expected a DNS name in small letters without wildcard, or an IP address, got "
            f"'{clean(host)}'"
        )
    if host == DOMAIN or host.endswith(f".{DOMAIN}"):
        raise ValueError(f"names below {DOMAIN} are those of the sites, got '{clean(host)}'")
    return host


def _address(address: str) -> str:
    if not is_address(address):
        raise ValueError("expected HOST:PORT, for instance fl.example.org:443")
    _host(host_of(address))
    return address


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, an IPv6 address without its brackets."""
    return address.rpartition(":")[0].strip("[]")


Address = Annotated[str, AfterValidator(_address)]
Certifiable = Annotated[Name, AfterValidator(_certifiable)]
Host = Annotated[str, AfterValidator(_host)]


class CoordinatorSection(Section):
    """Where the SuperLink is."""

    address: Address = setting(..., "what hospitals call, HOST:PORT")
    names: tuple[Host, ...] = setting(
        (), "its further DNS names and IP addresses, for its certificate", max_length=100
    )

    def hosts(self) -> list[str]:
        """Return every name and address of the certificate, each once, sorted."""
        return sorted({_host(host_of(self.address)), *self.names, *INSIDE})


class CertificatesSection(Section):
    """How long certificates are valid."""

    authority_days: int = setting(3650, "validity of the authority", "days", ge=1, le=7300)
    days: int = setting(365, "validity of every other certificate", "days", ge=1, le=825)
    renew_before: int = setting(
        30, "a certificate with less left is issued anew", "days", ge=0, le=365
    )

    @model_validator(mode="after")
    def _leaves_time(self) -> CertificatesSection:
        if self.renew_before >= self.days:
            raise ValueError(
                "renew-before must be less than days, else every certificate is issued anew each "
                f"time; got {self.renew_before} and {self.days}"
            )
        return self


class ImagesSection(Section):
    """The container images that the join kits name."""

    core: str = setting("fedapp-core:0.1.0", "image of the SuperNode", pattern=_IMAGE)
    site: str = setting("fedapp-site:0.1.0", "image of the site service", pattern=_IMAGE)


class ProvisionedMember(MemberSection):
    """One hospital."""

    name: Certifiable = setting(..., "the hospital's name, in its certificate and everywhere")
    revoked: bool = setting(
        False, "whether it has left: nothing is issued, its key is unregistered"
    )


class ConsortiumFile(Section):
    """What `fedapp provision` reads."""

    name: Certifiable = setting(..., "the consortium's name, in its authority's certificate")
    coordinator: CoordinatorSection = setting(..., "where the SuperLink is")
    certificates: CertificatesSection = Field(
        default_factory=CertificatesSection, description="how long certificates are valid"
    )
    images: ImagesSection = Field(
        default_factory=ImagesSection, description="the container images that the join kits name"
    )
    peers: Network | None = setting(None, "a run without a server (`fedapp peer`), if there is one")
    members: tuple[ProvisionedMember, ...] = setting(
        ..., "the hospitals", min_length=1, max_length=4096
    )

    @model_validator(mode="after")
    def _told_apart(self) -> ConsortiumFile:
        seen: dict[str, str] = {}
        for name in (member.name for member in self.members):
            other = seen.get(name.casefold())
            if other is not None:
                raise ValueError(
                    f"two members are called '{clean(other)}' and '{clean(name)}', which is one "
                    "name on some disks; rename or remove one"
                )
            seen[name.casefold()] = name
        unknown = [m.name for m in self.present() if not m.address]
        if self.peers is not None and unknown:
            raise ValueError(
                f"'{clean(unknown[0])}' has no address, expected HOST:PORT, since [peers] is a run "
                "in which the members call each other"
            )
        return self

    def present(self) -> Sequence[ProvisionedMember]:
        """Return the members that have not left."""
        return [member for member in self.members if not member.revoked]

    def network(self) -> Consortium | None:
        """Return the file of a run without a server, as every site gets it."""
        if self.peers is None or not self.present():
            return None
        members = [
            MemberSection(name=m.name, address=m.address, trains=m.trains) for m in self.present()
        ]
        return Consortium(**self.peers.model_dump(), members=tuple(members))


def read_consortium(path: Path) -> ConsortiumFile:
    """Read the coordinator's file.

    Raises
    ------
    ConfigError
        See `fedapp.section_file.read_section`; or if no network has the topology that it asks for.
    """
    config = read_section(path, ConsortiumFile)
    network = config.network()
    if network is not None:
        network.graph()
    return config
