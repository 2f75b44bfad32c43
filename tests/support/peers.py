"""A consortium on this machine: certificates, files, and peers as real processes."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from desk import COMMAND
from interface import ROOT

from fedapp.cli import toml
from fedapp.gossip.throwaway import Authority

TINY = """\
method = "lightyear"
[model]
source = "embedded:tiny-encoder"
max-length = 32
[lora]
rank = 2
"""
"""How a run's settings begin whose rounds take seconds."""
QUICK: dict[str, Any] = {
    "connect-timeout": 2.0,
    "digest-wait": 2.0,
    "answer-timeout": 3.0,
    "chunk-timeout": 5.0,
    "keepalive": 2.0,
    "backoff-base": 0.1,
    "backoff-cap": 0.5,
    "dead-after": 4.0,
    "chunk-kib": 64,
}
"""Settings of a machine that waits for nobody long."""


def free_port() -> int:
    """Return a port that nobody had a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class PeerProcesses:
    """The files of some sites below one folder, and their processes; use it with ``with``."""

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        *,
        topology: str = "full",
        gossip: Mapping[str, Any] = QUICK,
        addresses: Mapping[str, str] | None = None,
        relays: Collection[str] = (),
    ) -> None:
        self.root, self.run = root, secrets.token_hex(16)
        self.ports = {name: free_port() for name in names}
        self.authority = Authority.create()
        self.processes: list[subprocess.Popen[str]] = []
        root.mkdir(parents=True, exist_ok=True)
        known = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()} | dict(
            addresses or {}
        )
        text = toml.lines({"run": self.run, "topology": topology})
        for name in names:
            member = {"name": name, "address": known[name], "trains": name not in relays}
            text += "[[members]]\n" + toml.lines(member)
        (root / "consortium.toml").write_text(text, encoding="utf-8")
        for name in names:
            self.authority.write(self.folder(name), name)
            self.write_site(name, gossip)

    def __enter__(self) -> PeerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def folder(self, name: str) -> Path:
        return self.root / f"site-{list(self.ports).index(name)}"

    def site(self, name: str) -> Path:
        return self.folder(name) / "site.toml"

    def store(self, name: str) -> Path:
        return self.folder(name) / "store"

    def write_site(self, site: str, gossip: Mapping[str, Any] = QUICK, **changes: Any) -> Path:
        """Write a site's file; a change to None leaves a setting out."""
        settings = {
            "name": site,
            "consortium": "../consortium.toml",
            "certificate": "certificate.pem",
            "key": "key.pem",
            "authority": "authority.pem",
            "store": "store",
            "listen": f"127.0.0.1:{self.ports[site]}",
            "status-interval": 0.5,
            **{key.replace("_", "-"): value for key, value in changes.items()},
        }
        kept = {key: value for key, value in settings.items() if value is not None}
        text = toml.lines(kept) + "[gossip]\n" + toml.lines(dict(gossip))
        self.site(site).write_text(text, encoding="utf-8")
        return self.site(site)

    def peer(self, name: str) -> subprocess.Popen[str]:
        """Start ``fedapp peer`` of a site."""
        return self._start([*COMMAND, "peer", "--config", str(self.site(name))])

    def trainer(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a peer whose engine publishes what everybody can predict, see `engine_peer`."""
        script = str(Path(__file__).with_name("engine_peer.py"))
        return self._start([sys.executable, script, str(self.site(name)), *arguments])

    def double(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a second peer with a site's name and key, a store and a port of its own."""
        folder = self.root / f"double-of-{self.folder(name).name}"
        shutil.copytree(self.folder(name), folder, ignore=shutil.ignore_patterns("store"))
        port = free_port()
        text = (folder / "site.toml").read_text(encoding="utf-8")
        own = f'announce = "127.0.0.1:{port}"\n'
        text = own + text.replace(f":{self.ports[name]}", f":{port}")
        (folder / "site.toml").write_text(text, encoding="utf-8")
        script = str(Path(__file__).with_name("engine_peer.py"))
        return self._start([sys.executable, script, str(folder / "site.toml"), *arguments])

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        # Flower, where it is imported, sets how much gRPC says; the command's own choice counts.
        given = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
        environment = {**given, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.processes.append(process)
        return process


def terminate(
    *processes: subprocess.Popen[str], patience: float = 10.0
) -> list[tuple[int, str, str]]:
    """Ask processes to end, as a service manager does; return exit code, output and errors."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    ended = []
    for process in processes:
        output, errors = process.communicate(timeout=patience)
        ended.append((process.returncode, output, errors))
    return ended
