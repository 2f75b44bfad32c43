"""Tell a running SuperLink whose SuperNodes may join: exactly those of the present members.

Flower's own command registers a key, but lists nodes without their keys, so that it cannot tell a
member that is there from one that is not. Its client for the same calls can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedapp.errors import IdentityError, ProvisionError
from fedapp.gossip.identity import MAX_FILE, parse_authority
from fedapp.provision.folder import Folder
from fedapp.provision.members import NODE_KEY
from fedapp.small_file import read_small
from fedapp.text import clean

_LONGEST_KEY = 4096
_UNREGISTERED = "unregistered"


@dataclass(frozen=True)
class Enrolled:
    """What `enrol` did, by name of member (an unknown key by the name that the SuperLink has)."""

    added: tuple[str, ...]
    kept: tuple[str, ...]
    removed: tuple[str, ...]


def enrol(folder: Folder, superlink: str) -> Enrolled:
    """Register the keys of present members, and unregister every other one.

    Parameters
    ----------
    folder : Folder
        ``authority.pem`` and ``members`` are enough.
    superlink : str
        HOST:PORT of its control API, which hospitals cannot reach.

    Raises
    ------
    ProvisionError
        If it cannot be reached; if the folder has no member at all, which would unregister
        everybody for good; or if a key was unregistered before and can never come back.
    """
    wanted = member_keys(folder)
    with _Control(superlink, folder.authority) as control:
        found = control.nodes()
        burnt = [
            name for name, key in wanted.items() if key in found and found[key][1] == _UNREGISTERED
        ]
        added = [name for name, key in wanted.items() if key not in found]
        kept = [name for name, key in wanted.items() if key in found and name not in burnt]
        stale = {
            key: (name, node)
            for key, (name, status, node) in found.items()
            if key not in wanted.values() and status != _UNREGISTERED
        }
        if stale and not wanted:
            raise ProvisionError(
                f"{folder.members} has no member with a signed request, and the SuperLink knows "
                f"{len(stale)}; an unregistered key can never come back, so nothing was done: give "
                "the folder of the consortium (--from)"
            )
        for _, node in stale.values():
            control.unregister(node)
        for name in added:
            control.register(name, wanted[name])
    if burnt:
        raise ProvisionError(
            f"the key of {', '.join(burnt)} was unregistered from this SuperLink before, which "
            "it never takes back; the member makes new keys (`fedapp site keygen` in an empty "
            "folder) and you sign them with --renew"
        )
    removed = sorted(name or f"node {node}" for name, node in stale.values())
    return Enrolled(tuple(added), tuple(kept), tuple(removed))


def member_keys(folder: Folder) -> Mapping[str, bytes]:
    """Return the SuperNode's public key of every present member, as Flower sends it."""
    keys = {}
    if folder.members.is_dir():
        for path in sorted(folder.members.glob(f"*/{NODE_KEY}")):
            data = read_small(path, _LONGEST_KEY, "SuperNode's public key", ProvisionError)
            try:
                key = serialization.load_ssh_public_key(data)
            except ValueError:
                key = None
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ProvisionError(
                    f"{path} is no SuperNode's public key; run `fedapp provision` to write it anew"
                )
            keys[path.parent.name] = key.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
    return keys


class _Control:
    """The SuperLink's control API, over TLS, with the consortium's authority alone."""

    def __init__(self, address: str, authority: Path) -> None:
        # Loaded here: Flower takes a second to import.
        from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
        from flwr.supercore.control import ControlHttpClient

        pem = read_small(authority, MAX_FILE, "authority's certificate", IdentityError)
        parse_authority(pem, str(authority))
        self._address = address
        self._client = ControlHttpClient.from_server_address(
            address, False, pem, [CliClientHttpInterceptor()]
        )

    def __enter__(self) -> _Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def nodes(self) -> dict[bytes, tuple[str, str, int]]:
        """Return name, status and number of every node, by its public key."""
        from flwr.proto.control_pb2 import ListNodesRequest

        answer = self._call(self._client.ListNodes, ListNodesRequest())
        return {n.public_key: (n.name, n.status, n.node_id) for n in answer.nodes_info}

    def register(self, name: str, key: bytes) -> None:
        """Let the holder of a key join."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        self._call(self._client.RegisterNode, RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        """Let a node join no more."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._call(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node))

    def _call(self, method: Any, request: Any) -> Any:
        import httpx

        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            raise ProvisionError(
                f"the SuperLink at {self._address} refused ({error.response.status_code}): "
                f"{clean(error.response.text, 200)}"
            ) from None
        except httpx.HTTPError as error:
            raise ProvisionError(
                f"the SuperLink at {self._address} cannot be reached: {clean(str(error), 200)}; is "
                "it running, and is this its inside address?"
            ) from None
