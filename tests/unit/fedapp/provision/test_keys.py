"""A hospital's keys: made once, in the formats that are read, and never shown to others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fedapp.errors import IdentityError, ProvisionError
from fedapp.provision.keys import make_keys, open_ssh, read_node_key, read_peer_key
from fedapp.provision.request import SigningRequest
from fedapp.secret_file import create_secret, key_pem, read_secret


def test_two_keys_and_a_request_are_made_for_their_owner(tmp_path: Path) -> None:
    made = make_keys(tmp_path / "secrets", "Zürich")

    assert made.new
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "secrets").iterdir()}
    assert modes == {"peer.key": 0o600, "supernode.key": 0o600, "request.pem": 0o644}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    request = SigningRequest.read(made.request)
    assert request.name == "Zürich"
    assert request.fingerprint == made.fingerprint
    assert b"PRIVATE" not in made.request.read_bytes()


def test_the_nodes_key_is_of_the_kind_that_flower_takes(tmp_path: Path) -> None:
    """As `flwr.supernode.cli.flower_supernode` reads it, and `flwr supernode register`."""
    from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

    made = make_keys(tmp_path, "Basel")
    private = serialization.load_ssh_private_key((tmp_path / "supernode.key").read_bytes(), None)
    public = serialization.load_ssh_public_key(SigningRequest.read(made.request).node_line())

    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert uses_nist_ec_curve(public)
    assert (tmp_path / "supernode.key").read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY")


def test_the_same_again_keeps_everything(tmp_path: Path) -> None:
    first = make_keys(tmp_path, "Basel")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}

    again = make_keys(tmp_path, "Basel")

    assert not again.new
    assert again.fingerprint == first.fingerprint
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("lost", ["peer.key", "supernode.key", "request.pem"])
def test_what_a_kill_left_out_is_made_and_the_rest_stays(tmp_path: Path, lost: str) -> None:
    make_keys(tmp_path, "Basel")
    (tmp_path / lost).unlink()
    kept = {p: p.read_bytes() for p in tmp_path.iterdir() if p.suffix == ".key"}

    made = make_keys(tmp_path, "Basel")

    assert kept.items() <= {p: p.read_bytes() for p in tmp_path.iterdir()}.items()
    request = SigningRequest.read(made.request)
    assert request.peer == read_peer_key(tmp_path / "peer.key").public_key()
    assert request.node == read_node_key(tmp_path / "supernode.key").public_key()


def test_a_corrected_name_keeps_the_keys(tmp_path: Path) -> None:
    first = make_keys(tmp_path, "Bassel")
    second = make_keys(tmp_path, "Basel")
    assert first.fingerprint == second.fingerprint
    assert SigningRequest.read(second.request).name == "Basel"


@pytest.mark.parametrize("file", ["peer.key", "supernode.key"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_a_key_that_is_open_to_others_is_not_taken(tmp_path: Path, file: str, mode: int) -> None:
    make_keys(tmp_path, "Basel")
    (tmp_path / file).chmod(mode)
    before = (tmp_path / file).read_bytes()

    with pytest.raises(IdentityError, match=rf"{file} can be read .*mode {mode:04o}.*chmod 600"):
        make_keys(tmp_path, "Basel")
    assert (tmp_path / file).read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 100])
def test_another_file_in_a_keys_place_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    for name in ("peer.key", "supernode.key"):
        folder = tmp_path / name
        create_secret(folder / name, content, "file", ProvisionError)
        with pytest.raises(IdentityError, match=f"{name} is no"):
            make_keys(folder, "Basel")
        assert (folder / name).read_bytes() == content


def test_a_link_into_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "peer.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="does not exist"):
        make_keys(tmp_path, "Basel")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "key",
    [
        ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
        key_pem(ec.generate_private_key(ec.SECP384R1())),
    ],
    ids=["another kind", "another format"],
)
def test_a_nodes_key_that_flower_would_not_take_is_refused(tmp_path: Path, key: bytes) -> None:
    create_secret(tmp_path / "key", key, "file", ProvisionError)
    with pytest.raises(IdentityError, match="expected an ECDSA key in OpenSSH format without"):
        read_node_key(tmp_path / "key")


def test_a_peers_key_on_another_curve_is_refused(tmp_path: Path) -> None:
    for name, key in (
        ("a", ec.generate_private_key(ec.SECP384R1())),
        ("b", rsa.generate_private_key(65537, 2048)),
    ):
        create_secret(tmp_path / name, key_pem(key), "file", ProvisionError)  # type: ignore[arg-type]
        with pytest.raises(IdentityError, match="must be on the curve P-256"):
            read_peer_key(tmp_path / name)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_what_ssh_keygen_makes_and_reads_is_the_same(tmp_path: Path) -> None:
    ours = open_ssh(ec.generate_private_key(ec.SECP384R1()))
    create_secret(tmp_path / "ours", ours, "key", ProvisionError)
    said = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "ours"], capture_output=True, check=True
    )
    expected = read_node_key(tmp_path / "ours").public_key()
    assert serialization.load_ssh_public_key(said.stdout) == expected

    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-C", ""]
    subprocess.run([*make, "-N", "", "-f", tmp_path / "theirs"], check=True)
    assert read_node_key(tmp_path / "theirs").curve.name == "secp384r1"
    subprocess.run([*make, "-N", "a password", "-f", tmp_path / "locked"], check=True)
    with pytest.raises(IdentityError, match="without a password"):
        read_node_key(tmp_path / "locked")


def test_a_secret_is_written_whole_for_its_owner_and_once(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        create_secret(tmp_path / "new" / "s", b"one", "secret", ProvisionError)
    finally:
        os.umask(old)

    assert (tmp_path / "new" / "s").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ProvisionError, match="there already and is never overwritten"):
        create_secret(tmp_path / "new" / "s", b"two", "secret", ProvisionError)
    assert read_secret(tmp_path / "new" / "s", 9, "secret", ProvisionError) == b"one"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["s"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        create_secret(tmp_path / "s", b"one", "secret", ProvisionError)
    assert list(tmp_path.iterdir()) == []
