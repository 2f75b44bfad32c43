"""SuperLink and SuperNodes as processes on loopback: who gets in, and what the others are told.

Flower's words are asserted as they were seen, so that a new version that lets somebody in, or fails
for another reason, is noticed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from desk import COMMAND
from interface import ROOT
from peers import free_port
from provisioning import Coordinator

from fedapp.certificates import Issuer
from fedapp.config_join import read_join
from fedapp.errors import ProvisionError
from fedapp.provision.enrol import Enrolled, _Control, enrol, member_keys
from fedapp.provision.health import answers, connected
from fedapp.provision.keys import read_peer_key
from fedapp.provision.start import executor_command, program, supernode_command

pytestmark = pytest.mark.slow
PATIENCE = 300.0  # of a machine that computes something else as well


class Loopback:
    """One SuperLink, and SuperNodes of its members and of others."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.coordinator = Coordinator(root / "c", ["Basel", "Bern"], f"127.0.0.1:{self.port}")
        self.coordinator.complete()
        self.folder = self.coordinator.folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        log = (self.root / f"{name}.log").open("wb")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(self.root / "home")}
        environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.processes[name] = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        log.close()

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, name: str, words: str) -> str:
        """Return what a process has said, once it has said ``words``."""
        end = time.monotonic() + PATIENCE
        while words not in (said := self.log(name)):
            assert time.monotonic() < end, f"{name} has not said '{words}':\n{said}"
            time.sleep(0.2)
        return said

    def superlink(self) -> None:
        database = str(self.root / "superlink.db")
        self.start(
            "superlink", *COMMAND, "superlink", "--from", str(self.folder.path),
            "--listen", f"127.0.0.1:{self.port}", "--database", database,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while problem := answers(f"127.0.0.1:{self.port}", self.folder.authority):
            assert time.monotonic() < end, f"{problem}\n{self.log('superlink')}"
            assert self.processes["superlink"].poll() is None, self.log("superlink")
            time.sleep(0.2)

    def site(self, name: str, member: str, **changes: str) -> Path:
        """Return a member's folder as its operator has it, under another name."""
        folder = self.root / name
        shutil.copytree(self.folder.kit(member), folder)
        shutil.copytree(self.coordinator.root / member, folder / "secrets")
        join = folder / "join.toml"
        lines = [
            line
            for line in join.read_text(encoding="utf-8").splitlines()
            if not line.startswith(("site-address", *changes))
        ]
        lines += [f'{key} = "{value}"' for key, value in changes.items()]
        lines += [f"runtime-port = {free_port()}", "in-process = true"]
        join.write_text("\n".join(lines), encoding="utf-8")
        return folder

    def supernode(self, name: str, folder: Path) -> None:
        """Start a SuperNode with what `fedapp supernode` starts it with, but no executor."""
        command = supernode_command(read_join(folder / "join.toml"))
        self.start(name, *command, "--isolation", "process")

    def plain_flower(self, name: str, *options: str) -> None:
        """Start Flower's own program, which can do without what ours insists on."""
        self.start(
            name, program("flower-supernode"), "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(free_port()), "--isolation", "process", *options,
        )  # fmt: skip

    def enrol(self) -> Enrolled:
        return enrol(self.folder, f"127.0.0.1:{self.port}")

    def status(self) -> dict[str, str]:
        """Return the status of every node that the SuperLink knows, by its name."""
        with _Control(f"127.0.0.1:{self.port}", self.folder.authority) as control:
            return {name: status for name, status, _ in control.nodes().values()}

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(30)


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    one = Loopback(tmp_path_factory.mktemp("loopback"))
    try:
        one.superlink()
        one.enrol()
        yield one
    finally:
        one.end()


@contextlib.contextmanager
def impostor(certificate: Path, key: Path) -> Iterator[int]:
    """Serve TLS with a certificate on a port, as far as the handshake goes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):
                    context.wrap_socket(client, server_side=True).recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_members_get_in_and_nobody_else(loopback: Loopback, tmp_path: Path) -> None:
    assert loopback.enrol() == Enrolled((), ("Basel", "Bern"), ())
    folder = loopback.folder

    # A stranger who got hold of a whole kit, but has keys of their own.
    stranger = loopback.site("stranger", "Bern")
    own = Coordinator(loopback.root / "x", ["Bern"], loopback.coordinator.address)
    own.complete()
    shutil.copy2(own.root / "Bern/supernode.key", stranger / "secrets/supernode.key")
    # A member who was given another authority.
    misled = loopback.site("misled", "Bern")
    shutil.copy2(own.folder.authority, misled / "authority.pem")
    # A coordinator whose certificate has expired.
    root = x509.load_pem_x509_certificate(folder.authority.read_bytes())
    issuer = Issuer(root, read_peer_key(folder.authority_key))
    key = read_peer_key(folder.superlink_key).public_key()
    old = issuer.server("coordinator", key, timedelta(seconds=-1), ["127.0.0.1"])
    (tmp_path / "old.pem").write_bytes(old.public_bytes(Encoding.PEM))

    with impostor(tmp_path / "old.pem", folder.superlink_key) as port:
        basel = loopback.site("at-basel", "Basel") / "join.toml"
        loopback.start("Basel", *COMMAND, "supernode", "--config", str(basel))
        loopback.supernode("Bern", loopback.site("at-bern", "Bern"))
        loopback.supernode("stranger", stranger)
        loopback.supernode("misled", misled)
        late = loopback.site("late", "Bern", superlink=f"127.0.0.1:{port}")
        loopback.supernode("late", late)
        loopback.plain_flower("plain", "--insecure")
        loopback.plain_flower("keyless", "--root-certificates", str(folder.authority))

        loopback.wait_for("Basel", "SuperNode ID: ")
        loopback.wait_for("Bern", "SuperNode ID: ")
        for name, words in {
            "stranger": "[code: 2004]",
            "keyless": "[code: 2001]",
            "misled": "certificate verify failed: unable to get local issuer certificate",
            "late": "certificate verify failed: certificate has expired",
        }.items():
            said = loopback.wait_for(name, words)
            assert "Exit Code: 305" in said
            assert loopback.processes[name].wait(30) == 1
        # Plain text where TLS should be: no answer, so that it tries for ever.
        loopback.wait_for("plain", "Connection attempt failed, retrying in")

    refused = [loopback.log(name) for name in ("stranger", "keyless", "misled", "late", "plain")]
    assert not [said for said in refused if "SuperNode ID" in said]
    assert loopback.status() == {"Basel": "online", "Bern": "online"}
    assert connected(loopback.port), "what the health check of a SuperNode's container looks at"


def test_runs_are_executed_by_whoever_knows_the_secret(loopback: Loopback) -> None:
    stranger = Coordinator(loopback.root / "x", ["Bern"], loopback.coordinator.address).folder
    shutil.copy2(loopback.folder.authority, stranger.authority)
    address = f"127.0.0.1:{loopback.port}"
    loopback.start("executor", *executor_command(loopback.folder, address))
    loopback.start("foreign executor", *executor_command(stranger, address))

    said = loopback.wait_for("superlink", '"POST /v1/runtime/acquire-task HTTP/1.1" 401')
    assert said.count("SuperExec authentication failed") == 1
    loopback.processes["foreign executor"].wait(PATIENCE)
    loopback.wait_for("executor", "Starting Flower SuperExec")
    assert loopback.processes["executor"].poll() is None


def test_a_plain_call_gets_no_answer(loopback: Loopback) -> None:
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{loopback.port}/health", timeout=10)


def test_who_has_left_is_refused(loopback: Loopback) -> None:
    coordinator = loopback.coordinator
    coordinator.revoked = {"Bern"}
    coordinator.write()
    coordinator.provision()
    assert set(member_keys(loopback.folder)) == {"Basel"}

    assert loopback.enrol() == Enrolled((), ("Basel",), ("Bern",))

    # Its SuperNode is told at its next call, and ends.
    loopback.processes["Bern"].wait(PATIENCE)
    assert '/v1/fleet/pull-messages HTTP/1.1" 401' in loopback.log("superlink")
    assert loopback.status() == {"Basel": "online", "Bern": "unregistered"}


def test_a_key_that_has_left_is_never_taken_back(loopback: Loopback) -> None:
    loopback.coordinator.revoked = set()
    loopback.coordinator.write()
    loopback.coordinator.provision()

    with pytest.raises(ProvisionError, match="the key of Bern was unregistered"):
        loopback.enrol()


GOODBYE = {
    "Basel": (0, "SuperNode terminated gracefully"),
    "executor": (0, "SuperExec terminated gracefully"),
    # The web server in it raises the signal anew once it has closed.
    "superlink": (-signal.SIGTERM, "Application shutdown complete"),
}


@pytest.mark.parametrize("name", GOODBYE)
def test_sigterm_ends_it_within_ten_seconds(loopback: Loopback, name: str) -> None:
    loopback.wait_for("Basel", "Starting Flower SuperExec")
    process = loopback.processes[name]
    children = _children(process.pid)
    assert bool(children) == (name == "Basel"), "a SuperNode has an executor of its own"

    process.send_signal(signal.SIGTERM)
    code, words = GOODBYE[name]
    assert process.wait(_ten_seconds()) == code, loopback.log(name)
    # In a container they end with it; elsewhere they look now and then whether it is there.
    end = time.monotonic() + PATIENCE
    while any(map(_runs, children)):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert words in loopback.log(name)
    if name == "superlink":
        assert not connected(loopback.port, patience=0)


def _ten_seconds() -> float:
    """What a service manager waits; more where far more wants to run than there are cores."""
    return 10.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
