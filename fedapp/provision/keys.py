"""The two keys of a hospital, made where they stay.

`peer.key` (P-256, PKCS 8) is what its certificate is for: mutual TLS and signed updates between
hospitals. `supernode.key` (P-384, OpenSSH) is what its SuperNode signs its calls to the SuperLink
with, in the one format that Flower reads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedapp import atomic
from fedapp.errors import IdentityError, ProvisionError
from fedapp.gossip.identity import MAX_FILE, parse_private_key
from fedapp.provision.request import SigningRequest, make_request
from fedapp.secret_file import create_secret, key_pem, read_secret

PEER_KEY, NODE_KEY, REQUEST = "peer.key", "supernode.key", "request.pem"


@dataclass(frozen=True)
class MadeKeys:
    """What `make_keys` leaves.

    Attributes
    ----------
    request : Path
        The file to send to the coordinator; nothing in it is secret.
    fingerprint : str
        Of the two public keys, to compare by telephone.
    new : bool
        Whether keys were made; false if both were there.
    """

    request: Path
    fingerprint: str
    new: bool


def make_keys(folder: Path, name: str) -> MadeKeys:
    """Make a hospital's two keys, where they are missing, and the request to have them certified.

    A key that is there is never replaced: the same folder gives the same keys again.

    Parameters
    ----------
    folder : Path
        Made with mode 0700 if it is missing.
    name : str
        The hospital's, as in the coordinator's file.

    Raises
    ------
    IdentityError, ProvisionError
        If a file that is there is no such key, or can be read by others.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = False
    if not os.path.lexists(folder / PEER_KEY):
        pem = key_pem(ec.generate_private_key(ec.SECP256R1()))
        create_secret(folder / PEER_KEY, pem, "private key", ProvisionError)
        new = True
    if not os.path.lexists(folder / NODE_KEY):
        pem = open_ssh(ec.generate_private_key(ec.SECP384R1()))
        create_secret(folder / NODE_KEY, pem, "private key", ProvisionError)
        new = True
    peer, node = read_peer_key(folder / PEER_KEY), read_node_key(folder / NODE_KEY)
    path = folder / REQUEST
    request = _written(path, name, peer, node)
    if request is None:
        request = make_request(name, peer, node)
        atomic.write_bytes(path, request.pem)
    return MadeKeys(path, request.fingerprint, new)


def read_peer_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of a hospital's certificate.

    Raises
    ------
    IdentityError
        If it is missing, open to others, or no key on P-256.
    """
    pem = read_secret(path, MAX_FILE, "private key", IdentityError)
    key = parse_private_key(pem, str(path))
    if not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError(f"the private key {path} must be on the curve P-256")
    return key


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a SuperNode's key, as Flower would read it.

    Raises
    ------
    IdentityError
        If it is missing, open to others, encrypted, or no OpenSSH key on a NIST curve.
    """
    data = read_secret(path, MAX_FILE, "SuperNode's key", IdentityError)
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(
            f"{path} is no SuperNode's key: expected an ECDSA key in OpenSSH format without a "
            "password, as `fedapp site keygen` makes it; name the right file"
        )
    return key


def open_ssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in OpenSSH's format, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def _written(
    path: Path, name: str, peer: ec.EllipticCurvePrivateKey, node: ec.EllipticCurvePrivateKey
) -> SigningRequest | None:
    """Return the request that is there, if it is for this name and these keys."""
    if not path.exists():
        return None
    try:
        request = SigningRequest.read(path)
    except ProvisionError:
        return None
    whole = (request.name, request.peer, request.node)
    return request if whole == (name, peer.public_key(), node.public_key()) else None
