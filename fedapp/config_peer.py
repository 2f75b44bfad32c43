"""The settings of a node that runs by itself: the site's file, and the consortium's."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from fedapp.config import RunConfig
from fedapp.config_gossip import GossipSection
from fedapp.config_section import Section, setting
from fedapp.errors import ConfigError
from fedapp.gossip.membership import Member, is_address
from fedapp.gossip.start import Start
from fedapp.gossip.topology import Graph, Topology, neighbours, pulled_by
from fedapp.paths import user_path
from fedapp.registry import METHODS
from fedapp.section_file import read_section
from fedapp.text import clean, site_name

_EVERYWHERE = ("0.0.0.0:", "[::]:")


def _listening(address: str) -> str:
    if not is_address(address, least_port=0):
        raise ValueError("expected HOST:PORT, for instance 0.0.0.0:9443; port 0 takes a free one")
    return address


def _reachable(address: str) -> str:
    if address and not is_address(address):
        raise ValueError("expected HOST:PORT, for instance site-a.example.org:9443")
    return address


Name = Annotated[str, AfterValidator(site_name)]
Address = Annotated[str, AfterValidator(_reachable)]


class MemberSection(Section):
    """One site of the consortium."""

    name: Name = setting(..., "the site's name, as in its certificate")
    address: Address = setting("", "where it listens, HOST:PORT; empty: known once it calls")
    trains: bool = setting(True, "whether it publishes updates, or passes on those of others alone")


class Network(Section):
    """What a run without a server is called, and who pulls from whom."""

    run: str = setting(
        ..., "identity of the run, 32 hexadecimal digits that nobody used before",
        pattern="^[0-9a-f]{32}$",
    )  # fmt: skip
    topology: Topology = setting("full", "who pulls from whom")
    degree: int = setting(4, "neighbours of every site in topology k-regular", ge=1, le=10**6)
    seed: int = setting(0, "draws the graph of topology k-regular", ge=0, le=2**63 - 1)


class Consortium(Network):
    """What all sites must have alike; one file, handed to each of them."""

    members: tuple[MemberSection, ...] = setting(..., "the sites", min_length=1, max_length=4096)

    def graph(self) -> Graph:
        """Return whom each site pulls from."""
        names = [member.name for member in self.members]
        return neighbours(self.topology, names, degree=self.degree, seed=self.seed)

    def origins(self, own: str) -> list[str]:
        """Return the sites whose updates the site ``own`` wants: all others that train."""
        return [m.name for m in self.members if m.trains and m.name != own]

    def peers(self) -> list[Member]:
        """Return the sites as the gossip layer takes them."""
        return [Member(member.name, member.address) for member in self.members]


class PeerConfig(Section):
    """One site's own file. Paths are relative to the folder that it is in."""

    name: Name = setting(..., "this site's name, as in its certificate and the consortium file")
    consortium: Path = setting(..., "the consortium file")
    certificate: Path = setting(..., "this site's certificate, PEM")
    key: Path = setting(..., "its private key, PEM")
    authority: Path = setting(..., "the consortium's certificate, PEM")
    store: Path = setting(..., "folder for updates; this node's alone")
    listen: Annotated[str, AfterValidator(_listening)] = setting(
        "0.0.0.0:9443", "where this node listens, HOST:PORT"
    )
    announce: Address = setting(
        "", "where others reach it, HOST:PORT; empty: where the consortium file says, or listen"
    )
    settings: Path | None = setting(
        None, "the run's settings, of a site that trains: equal at all of them but for the data"
    )
    state: Path = setting(
        Path("state"), "folder for a training site's own model and results; this node's alone"
    )
    status_interval: float = setting(
        30.0, "time between two lines about who is alive", "s", ge=0.1, le=86400
    )
    gossip: GossipSection = Field(default_factory=GossipSection)


def load_peer(path: Path) -> Start:
    """Read a site's file and the consortium file that it names, as a node takes them.

    Raises
    ------
    ConfigError
        See `read_peer`; or if the site is to train, and is a member that does not.
    """
    config, consortium = read_peer(path)
    own = next(member for member in consortium.members if member.name == config.name)
    if config.settings and not own.trains:
        raise ConfigError(
            f"{path} names settings to train with, and {config.consortium} says of "
            f"'{config.name}' trains = false, so that nobody would ask for its model; take one out"
        )
    graph = consortium.graph()
    origins = consortium.origins(config.name)
    if config.settings:  # a model is mixed with its neighbours' alone
        origins = [name for name in origins if name in graph[config.name]]
    return Start(
        name=config.name,
        run=consortium.run,
        certificate=str(config.certificate),
        key=str(config.key),
        authority=str(config.authority),
        store=str(config.store),
        listen=config.listen,
        announce=config.announce,
        listeners=pulled_by(graph, config.name),
        status_interval=config.status_interval,
        members=tuple(consortium.peers()),
        neighbours=graph[config.name],
        origins=tuple(origins),
        gossip=config.gossip.plain(),
        settings_file=str(config.settings) if config.settings else "",
        state=str(config.state),
        degrees={name: len(sources) for name, sources in graph.items()},
    )


def read_peer(path: Path) -> tuple[PeerConfig, Consortium]:
    """Read a site's file and the consortium file that it names.

    Raises
    ------
    ConfigError
        If one is missing, unreadable, has an unknown or impossible setting, or the site is no
        member.
    """
    here = path.absolute().parent
    config = read_section(path, PeerConfig)
    places = {
        field: here / user_path(getattr(config, field))
        for field in ("consortium", "certificate", "key", "authority", "store", "state")
    }
    if config.settings:
        places["settings"] = here / user_path(config.settings)
    config = config.model_copy(update=places)
    consortium = read_section(config.consortium, Consortium)
    try:
        graph = consortium.graph()
    except ConfigError as error:
        raise ConfigError(f"{config.consortium}: {error.message}") from None
    if config.name not in graph:
        near = difflib.get_close_matches(config.name, graph, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else "; add the site there, or correct name"
        raise ConfigError(f"{config.consortium} has no member '{clean(config.name)}'{hint}")
    own = next(member.address for member in consortium.members if member.name == config.name)
    config = config.model_copy(update={"announce": config.announce or own})
    if not config.announce and config.listen.startswith(_EVERYWHERE):
        raise ConfigError(
            f"{path}: listen is {config.listen}, which is no place to call; set announce, or this "
            f"site's address in {config.consortium}"
        )
    return config, consortium


def read_settings(path: Path) -> RunConfig:
    """Read the settings of a run without a coordinator; raises ConfigError."""
    config = RunConfig.from_toml(path)
    if not METHODS[config.method].peer_rule:
        named = ", ".join(name for name, method in METHODS.items() if method.peer_rule)
        raise ConfigError(
            f"{path}: method {config.method} needs a coordinator; choose one of {named}"
        )
    return config
