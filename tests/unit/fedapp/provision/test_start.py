"""Flower's programs start with every file, and never without one."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from provisioning import Coordinator

from fedapp.certificates import Issuer
from fedapp.config_join import read_join
from fedapp.errors import ConfigError, FedappError, IdentityError
from fedapp.provision import start
from fedapp.provision.keys import read_peer_key
from fedapp.provision.start import become, executor_command, superlink_command, supernode_command


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    made = Coordinator(tmp_path, ["St. Gallen"])
    made.complete()
    shutil.copytree(tmp_path / "St. Gallen", kit(made) / "secrets")
    return made


def kit(coordinator: Coordinator) -> Path:
    return coordinator.folder.kit("St. Gallen")


def superlink(coordinator: Coordinator) -> list[str]:
    return superlink_command(coordinator.folder, "0.0.0.0:8000", coordinator.root / "superlink.db")


def supernode(coordinator: Coordinator) -> list[str]:
    return supernode_command(read_join(kit(coordinator) / "join.toml"))


def test_the_superlink_has_tls_authentication_and_its_own_executor(
    coordinator: Coordinator,
) -> None:
    command = superlink(coordinator)
    place = command.index(start.program("flower-superlink"))
    options = _parse_args_run_superlink().parse_args(command[place + 1 :])

    assert options.enable_supernode_auth
    assert not options.insecure
    assert (options.host, options.port, options.isolation) == ("0.0.0.0", 8000, "process")
    assert Path(options.ssl_certfile).read_bytes() == coordinator.folder.superlink.read_bytes()
    assert Path(options.superexec_auth_secret_file) == coordinator.folder.executor_secret
    assert not options.runtime_dependency_install


def test_the_supernode_has_tls_its_key_and_its_site(coordinator: Coordinator) -> None:
    from flwr.common.config import parse_config_args

    command = supernode(coordinator)
    place = command.index(start.program("flower-supernode"))
    options = _parse_args_run_supernode().parse_args(command[place + 1 :])

    assert not options.insecure
    assert options.superlink == "fl.test:8000"
    assert Path(options.root_certificates) == kit(coordinator) / "authority.pem"
    assert Path(options.auth_supernode_private_key) == kit(coordinator) / "secrets/supernode.key"
    assert options.host == "127.0.0.1"
    assert parse_config_args([options.node_config]) == {
        "site": "St. Gallen",
        "site-address": "unix:/run/fedapp/site/site.sock",
        "coordinator": "Heart",
    }


def test_no_supernode_has_its_site_in_its_own_process_unless_it_is_told_to(
    coordinator: Coordinator,
) -> None:
    """There the coordinator's code would read the records, with neither policy nor audit log."""
    path = kit(coordinator) / "join.toml"
    lines = path.read_text(encoding="utf-8").splitlines()
    without = [line for line in lines if not line.startswith("site-address")]
    path.write_text("\n".join(without), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"St\. Gallen has no site-address, .* in-process = true"):
        supernode(coordinator)

    path.write_text("\n".join([*without, "in-process = true"]), encoding="utf-8")
    command = supernode(coordinator)
    assert "site-address" not in command[command.index("--node-config") + 1]

    path.write_text("\n".join([*lines, "in-process = true"]), encoding="utf-8")
    with pytest.raises(ConfigError, match="expected one of the two; take in-process out"):
        supernode(coordinator)


def test_the_executor_has_tls_and_the_secret(coordinator: Coordinator) -> None:
    command = executor_command(coordinator.folder, "superlink:8000")
    assert "--insecure" not in command
    assert str(coordinator.folder.executor_secret) in command
    assert str(coordinator.folder.authority) in command


@pytest.mark.parametrize(
    "file",
    ["authority.pem", "superlink.pem", "secrets/superlink.key", "secrets/executor.secret"],
)
def test_no_superlink_without_a_file(coordinator: Coordinator, file: str) -> None:
    path = coordinator.folder.path / file
    path.unlink()
    with pytest.raises(FedappError, match=rf"{path.name} does not exist") as caught:
        superlink(coordinator)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("file", ["authority.pem", "secrets/executor.secret"])
def test_no_executor_without_a_file(coordinator: Coordinator, file: str) -> None:
    (coordinator.folder.path / file).unlink()
    with pytest.raises(FedappError, match="does not exist"):
        executor_command(coordinator.folder, "superlink:8000")


@pytest.mark.parametrize("file", ["authority.pem", "secrets/supernode.key", "join.toml"])
def test_no_supernode_without_a_file(coordinator: Coordinator, file: str) -> None:
    (kit(coordinator) / file).unlink()
    with pytest.raises(FedappError, match="does not exist") as caught:
        supernode(coordinator)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "file", ["authority.pem", "superlink.pem", "secrets/superlink.key", "secrets/executor.secret"]
)
@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN CERTIFICATE-----\nxx\n"])
def test_no_superlink_with_something_else_in_a_files_place(
    coordinator: Coordinator, file: str, content: bytes
) -> None:
    path = coordinator.folder.path / file
    path.write_bytes(content)
    if "secret" in path.name and len(content) >= 16:
        return  # any sixteen bytes are a secret
    with pytest.raises(FedappError) as caught:
        superlink(coordinator)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["secrets/superlink.key", "secrets/executor.secret"])
def test_no_superlink_with_a_secret_that_others_can_read(
    coordinator: Coordinator, file: str
) -> None:
    (coordinator.folder.path / file).chmod(0o644)
    with pytest.raises(FedappError, match="can be read or written by others"):
        superlink(coordinator)


def test_no_supernode_with_a_key_that_others_can_read(coordinator: Coordinator) -> None:
    (kit(coordinator) / "secrets/supernode.key").chmod(0o640)
    with pytest.raises(IdentityError, match="can be read or written by others"):
        supernode(coordinator)


def test_no_supernode_with_the_other_key(coordinator: Coordinator) -> None:
    secrets = kit(coordinator) / "secrets"
    shutil.copy2(secrets / "peer.key", secrets / "supernode.key")
    with pytest.raises(IdentityError, match="expected an ECDSA key in OpenSSH format"):
        supernode(coordinator)


def test_no_supernode_with_a_members_certificate_as_authority(coordinator: Coordinator) -> None:
    shutil.copy2(kit(coordinator) / "certificate.pem", kit(coordinator) / "authority.pem")
    with pytest.raises(IdentityError, match=r"'CN=St\. Gallen', which is no authority"):
        supernode(coordinator)


def issue(coordinator: Coordinator, lifetime: timedelta) -> None:
    folder = coordinator.folder
    root = x509.load_pem_x509_certificate(folder.authority.read_bytes())
    issuer = Issuer(root, read_peer_key(folder.authority_key))
    key = read_peer_key(folder.superlink_key).public_key()
    own = issuer.server("coordinator", key, lifetime, ["localhost"])
    folder.superlink.write_bytes(own.public_bytes(Encoding.PEM))


def test_no_superlink_with_an_expired_certificate(coordinator: Coordinator) -> None:
    issue(coordinator, timedelta(minutes=5))
    superlink(coordinator)
    issue(coordinator, timedelta(seconds=-1))
    with pytest.raises(IdentityError, match=r"superlink.pem is valid from .* to .*, it is .* here"):
        superlink(coordinator)


def test_no_superlink_with_the_certificate_of_another_authority(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    other = Coordinator(tmp_path / "other")
    other.provision()
    for name in ("superlink.pem", "secrets/superlink.key"):
        shutil.copy2(other.folder.path / name, coordinator.folder.path / name)
    with pytest.raises(IdentityError, match="was not issued by this consortium's authority"):
        superlink(coordinator)


def test_no_superlink_with_a_members_certificate(coordinator: Coordinator) -> None:
    shutil.copy2(kit(coordinator) / "certificate.pem", coordinator.folder.superlink)
    with pytest.raises(IdentityError, match=r"superlink.key does not belong to the certificate"):
        superlink(coordinator)


def test_no_superlink_with_another_key(coordinator: Coordinator) -> None:
    shutil.copy2(kit(coordinator) / "secrets/peer.key", coordinator.folder.superlink_key)
    with pytest.raises(IdentityError, match=r"superlink.key does not belong to the certificate"):
        superlink(coordinator)


def test_no_superlink_without_a_place_for_its_database(coordinator: Coordinator) -> None:
    with pytest.raises(ConfigError, match="absent of the SuperLink's database is not there"):
        superlink_command(coordinator.folder, "0.0.0.0:8000", coordinator.root / "absent/x.db")


@pytest.mark.parametrize(
    "listen", ["8000", "0.0.0.0", "0.0.0.0:0", "a b:1", "x:99999", "--insecure:1"]
)
def test_an_address_that_is_none_is_a_sentence(coordinator: Coordinator, listen: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        superlink_command(coordinator.folder, listen, coordinator.root / "x.db")
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        executor_command(coordinator.folder, listen)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("fl.test:8000", "http://fl.test"), "'superlink'"),
        (("unix:/run", "tcp:/run"), "'site-address'"),
        (("unix:/run/fedapp/site/site.sock", "unix:/a b"), "'site-address'"),
        (('"St. Gallen"', '"x\\" insecure=true site=\\"y"'), "'site'"),
        (('"Heart"', '"x\\" site=\\"y"'), "'coordinator'"),
        (("superlink =", "insecure = true\nsuperlink ="), "unknown setting 'insecure'"),
    ],
)
def test_a_mistake_in_join_toml_is_a_sentence(
    coordinator: Coordinator, change: tuple[str, str], words: str
) -> None:
    path = kit(coordinator) / "join.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        supernode(coordinator)
    assert words in str(caught.value)


def test_flowers_program_takes_the_place_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(os, "execve", lambda *a: seen.extend(a))
    environment = {"PYTHONPATH": "/other/code", "PATH": "/bin", "FLWR_TELEMETRY_ENABLED": "1"}

    become(["/x/flower-supernode", "--y"], tmp_path / "home", environment)  # type: ignore[unused-coroutine]

    program, command, given = seen
    assert (program, command) == ("/x/flower-supernode", ["/x/flower-supernode", "--y"])
    assert isinstance(given, dict)
    assert "PYTHONPATH" not in given
    assert given["FLWR_HOME"] == str(tmp_path / "home")
    assert given["FLWR_TELEMETRY_ENABLED"] == "0"
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_no_command_can_be_asked_for_without_tls() -> None:
    import inspect

    from fedapp.cli import start as commands

    for module in (start, commands):
        assert "--insecure" not in inspect.getsource(module)


def test_keys_of_the_nodes_curve_are_made_elsewhere(coordinator: Coordinator) -> None:
    """A P-256 key in OpenSSH format, as some tools make it, is one that Flower takes."""
    from fedapp.provision.keys import open_ssh
    from fedapp.secret_file import replace_secret

    path = kit(coordinator) / "secrets/supernode.key"
    replace_secret(path, open_ssh(ec.generate_private_key(ec.SECP256R1())))
    assert str(path) in supernode(coordinator)
