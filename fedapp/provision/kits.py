"""What each hospital gets: settings, containers, the authority, and a page that says what to do.

Nothing in a kit is secret. It is written anew whenever what it is made of has changed, and holds no
date, so that the same consortium gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from string import Template

from fedapp import toml
from fedapp.config_provision import ConsortiumFile
from fedapp.provision.folder import Folder, put
from fedapp.provision.members import CERTIFICATE

_PLAIN = (
    "docker-compose.yml", "compose.gpu.yml", "compose.peers.yml", "compose.site-peer.yml",
)  # fmt: skip
_FILLED = {"README.md": "README.md", "env": ".env", "join.toml": "join.toml",
           "site.toml": "site.toml", "fingerprints.txt": "fingerprints.txt"}  # fmt: skip
_PEERS, _PEER, _SITE_PEER = "peers.toml", "peer.toml", "site-peer.toml"
_USUAL_PORT = "9443"


def write_kit(
    folder: Folder, config: ConsortiumFile, name: str, authority: bytes, fingerprint: str
) -> bool:
    """Write one member's kit; return whether anything in it changed.

    Parameters
    ----------
    folder : Folder
    config : ConsortiumFile
    name : str
        The member's.
    authority : bytes
        The consortium's certificate, PEM.
    fingerprint : str
        The authority's.
    """
    kit = folder.kit(name)
    values = {
        "site": name,
        "consortium": config.name,
        "superlink": config.coordinator.address,
        "fingerprint": fingerprint,
        "core": config.images.core,
        "image": config.images.site,
    }
    changed = put(kit / "authority.pem", authority)
    for file in _PLAIN:
        changed |= put(kit / file, _template(file).encode())
    values["port"] = _port(config, name)
    for file, target in _FILLED.items():
        changed |= put(kit / target, Template(_template(file)).substitute(values).encode())
    network = _network(config, name)
    for file in (_PEERS, _PEER, _SITE_PEER):
        if file in network:
            changed |= put(kit / file, network[file].encode())
        elif (kit / file).exists():
            (kit / file).unlink()
            changed = True
    certificate = folder.member(name) / CERTIFICATE
    if certificate.exists():
        changed |= put(kit / CERTIFICATE, certificate.read_bytes())
    return changed


def _network(config: ConsortiumFile, name: str) -> Mapping[str, str]:
    """Return the files of a peer, if the consortium has a run without a server.

    One is of a peer that passes on what others publish, one of a site service that trains.
    """
    network = config.network()
    if network is None:
        return {}
    plain = network.model_dump(by_alias=True)
    members = plain.pop("members")
    text = toml.lines(plain)
    for member in members:
        text += "\n[[members]]\n" + toml.lines(member)
    peer = {"name": name, "consortium": _PEERS, "certificate": CERTIFICATE,
            "key": "secrets/peer.key", "authority": "authority.pem", "store": "store"}  # fmt: skip
    # What the coordinator hands over beside the kit, and the site's own volume.
    files = {_PEERS: text, _PEER: toml.lines(peer)}
    if next(member["trains"] for member in members if member["name"] == name):
        trains = {**peer, "settings": "settings.toml", "store": "/state/store"}
        files[_SITE_PEER] = toml.lines(trains)
    return files


def _port(config: ConsortiumFile, name: str) -> str:
    """Return the port that the others call this member on."""
    own = next(member.address for member in config.members if member.name == name)
    return own.rpartition(":")[2] or _USUAL_PORT


def _template(name: str) -> str:
    return resources.files("fedapp.provision").joinpath("kit", name).read_text(encoding="utf-8")
