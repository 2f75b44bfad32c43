"""Before Flower's own programs start: are all files there, right, and belonging together?

Flower starts without TLS, or without asking SuperNodes who they are, where an option is left out.
These commands have no such options: without every file there is no process.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedapp.config_join import JoinConfig
from fedapp.errors import ConfigError, IdentityError, ProvisionError
from fedapp.gossip.identity import MAX_FILE, parse_authority, parse_certificate
from fedapp.gossip.membership import is_address
from fedapp.provision.folder import Folder
from fedapp.provision.keys import read_node_key, read_peer_key
from fedapp.secret_file import read_secret
from fedapp.small_file import read_small
from fedapp.text import clean
from fedapp.toml import literal

_LEAST_SECRET = 16

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Flower calls home and installs packages unless it is told not to."""

PROMPT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
"""Seconds after which a SuperNode's executor asks it again for work, within one machine: Flower's
own second would be half a second of every message."""

FRUGAL = {"MALLOC_ARENA_MAX": "2"}
"""Flower's web servers answer in dozens of threads, for each of which glibc would keep memory."""


def superlink_command(folder: Folder, listen: str, database: Path) -> list[str]:
    """Check what the SuperLink needs and return its command.

    Parameters
    ----------
    folder : Folder
        As `fedapp provision` made it; the authority's key need not be there.
    listen : str
        HOST:PORT.
    database : Path
        Its file; the folder must be there and writable.

    Raises
    ------
    ConfigError, IdentityError, ProvisionError
        Naming what is missing or wrong.
    """
    host, port = _listening(listen)
    root = _authority(folder.authority)
    check_server(folder.superlink, folder.superlink_key, root)
    _secret(folder.executor_secret)
    if not database.parent.is_dir() or not os.access(database.parent, os.W_OK):
        raise ConfigError(
            f"the folder {database.parent} of the SuperLink's database is not there or not "
            "writable; make it, or mount a volume there"
        )
    return [
        *_beside("superlink.py", "flower-superlink"),
        "--ssl-ca-certfile", str(folder.authority),
        "--ssl-certfile", str(folder.superlink),
        "--ssl-keyfile", str(folder.superlink_key),
        "--enable-supernode-auth",
        "--host", host, "--port", port,
        "--database", str(database),
        "--isolation", "process",
        "--superexec-auth-secret-file", str(folder.executor_secret),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def executor_command(folder: Folder, superlink: str) -> list[str]:
    """Check what the executor of ServerApps needs and return its command.

    Parameters
    ----------
    folder : Folder
        ``authority.pem`` and ``secrets/executor.secret`` are enough.
    superlink : str
        HOST:PORT, by a name that is in its certificate.
    """
    _authority(folder.authority)
    _secret(folder.executor_secret)
    return [
        program("flower-superexec"),
        "--runtime-api-address", _called(superlink),
        "--root-certificates", str(folder.authority),
        "--superexec-auth-secret-file", str(folder.executor_secret),
    ]  # fmt: skip


def supernode_command(config: JoinConfig) -> list[str]:
    """Check what a hospital's SuperNode needs and return its command.

    Raises
    ------
    ConfigError, IdentityError, ProvisionError
        Naming what is missing or wrong.
    """
    _served(config)
    _authority(config.authority)
    read_node_key(config.key)
    node = {
        "site": config.site,
        "site-address": config.site_address,
        "coordinator": config.coordinator,
    }
    return [
        *_beside("supernode.py", "flower-supernode"),
        "--superlink", config.superlink,
        "--root-certificates", str(config.authority),
        "--auth-supernode-private-key", str(config.key),
        "--node-config", " ".join(f"{k}={literal(value)}" for k, value in node.items() if value),
        "--host", "127.0.0.1", "--port", str(config.runtime_port),
    ]  # fmt: skip


def check_server(certificate: Path, key: Path, root: x509.Certificate) -> x509.Certificate:
    """Return the SuperLink's certificate if the consortium issued it, it is valid and has its key.

    Raises
    ------
    IdentityError
        If not.
    """
    pem = read_small(certificate, MAX_FILE, "SuperLink's certificate", IdentityError)
    own = parse_certificate(pem, str(certificate))
    now = datetime.now(UTC)
    if not own.not_valid_before_utc <= now <= own.not_valid_after_utc:
        raise IdentityError(
            f"the SuperLink's certificate {certificate} is valid from {own.not_valid_before_utc} "
            f"to {own.not_valid_after_utc}, it is {now:%Y-%m-%d %H:%M:%S} here; run `fedapp "
            "provision` to have it issued anew, or set the clock"
        )
    try:
        extension = own.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        first = next(iter(extension.value))
        if not isinstance(first, x509.DNSName | x509.IPAddress):
            raise ValueError("its first alternative name is no host")
        policy = PolicyBuilder().store(Store([root])).time(now)
        policy.build_server_verifier(first).verify(own, [])
    except (VerificationError, x509.ExtensionNotFound, StopIteration, ValueError) as error:
        raise IdentityError(
            f"the SuperLink's certificate {certificate} was not issued by this consortium's "
            f"authority, or breaks its rules: {clean(str(error), 200)}; run `fedapp provision`"
        ) from None
    if read_peer_key(key).public_key() != own.public_key():
        raise IdentityError(
            f"the private key {key} does not belong to the certificate {certificate}; run `fedapp "
            "provision` in the folder that has both"
        )
    return own


def become(command: list[str], home: Path, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by Flower's program; signals and exit code are its own.

    Parameters
    ----------
    command : list of str
    home : Path
        ``FLWR_HOME``: where Flower keeps app bundles and its own files.
    environment : mapping
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Code found on PYTHONPATH would be imported instead of an app's bundle.
    kept = {k: v for k, v in {**FRUGAL, **environment}.items() if k != "PYTHONPATH"}
    path = os.pathsep.join([sysconfig.get_path("scripts"), kept.get("PATH", "")])
    kept |= {**QUIET, "FLWR_HOME": str(home), "PATH": path}
    os.execve(command[0], command, kept)  # noqa: S606


def program(name: str) -> str:
    """Return the path of one of Flower's programs, beside the running Python."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise ProvisionError(f"{path} is missing; install fedapp again, Flower comes with it")
    return str(path)


def _beside(file: str, name: str) -> list[str]:
    """Return how one of Flower's programs is run by a file of this folder."""
    return [sys.executable, "-P", str(Path(__file__).with_name(file)), program(name)]


def _served(config: JoinConfig) -> None:
    if not config.site_address and not config.in_process:
        raise ConfigError(
            f"the join.toml of {config.site} has no site-address, so that the coordinator's code "
            "would read the records itself, without policy and audit log; name the socket of "
            "`fedapp site serve`, or say in-process = true for a trial"
        )
    if config.site_address and config.in_process:
        raise ConfigError(
            f"the join.toml of {config.site} has a site-address and in-process = true, expected "
            "one of the two; take in-process out"
        )


def _authority(path: Path) -> x509.Certificate:
    pem = read_small(path, MAX_FILE, "authority's certificate", IdentityError)
    root = parse_authority(pem, str(path))
    try:
        constraints = root.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        constraints = None
    if constraints is None or not constraints.ca:
        raise IdentityError(
            f"{path} is the certificate of '{clean(root.subject.rfc4514_string())}', which is no "
            "authority; give the consortium's authority.pem"
        )
    return root


def _secret(path: Path) -> None:
    secret = read_secret(path, MAX_FILE, "executor's secret", ProvisionError)
    if len(secret) < _LEAST_SECRET:
        raise ProvisionError(
            f"the executor's secret {path} has {len(secret)} bytes, expected at least "
            f"{_LEAST_SECRET}; remove it and run `fedapp provision`"
        )


def _listening(address: str) -> tuple[str, str]:
    if not is_address(address):
        raise ConfigError(
            f"--listen is '{clean(address)}', expected HOST:PORT, for instance 0.0.0.0:8000"
        )
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _called(address: str) -> str:
    if not is_address(address):
        raise ConfigError(
            f"--superlink is '{clean(address)}', expected HOST:PORT, for instance superlink:8000"
        )
    return address
