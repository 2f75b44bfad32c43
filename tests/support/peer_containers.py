"""Sites that exchange their models without a server, each in a container of its own."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import docker, inspect
from peers import QUICK
from stack import SITE

from fedapp.cli import toml
from fedapp.gossip.throwaway import Authority
from fedapp.results import RunFolder

PORT = 9443
_OWNER = "49999:49999"


class PeerContainers:
    """The files of some sites below one folder, a network, and their peers; use it with ``with``.

    Parameters
    ----------
    root : Path
    names : sequence of str
        Hospitals of ``embedded:heart``.
    settings : str
        The run's, equal everywhere.
    gossip : mapping
    """

    def __init__(
        self, root: Path, names: Sequence[str], settings: str, gossip: Mapping[str, Any] = QUICK
    ) -> None:
        self.root, self.names = root, list(names)
        self.network = f"fedapp-test-peers-{secrets.token_hex(4)}"
        self.containers: dict[str, str] = {}
        authority = Authority.create()
        consortium = toml.lines({"run": secrets.token_hex(16)})
        for name in self.names:
            member = {"name": name, "address": f"{self.alias(name)}:{PORT}"}
            consortium += "[[members]]\n" + toml.lines(member)
        for name in self.names:
            folder = self.folder(name)
            authority.write(folder, name)
            (folder / "consortium.toml").write_text(consortium, encoding="utf-8")
            (folder / "settings.toml").write_text(settings, encoding="utf-8")
            own = {
                "name": name, "consortium": "consortium.toml", "certificate": "certificate.pem",
                "key": "key.pem", "authority": "authority.pem", "settings": "settings.toml",
                "store": "/state/store", "state": "/state/own", "listen": f"0.0.0.0:{PORT}",
                "status-interval": 2.0,
            }  # fmt: skip
            text = toml.lines(own) + "[gossip]\n" + toml.lines(dict(gossip))
            (folder / "site.toml").write_text(text, encoding="utf-8")
            self.state(name).mkdir()
        subprocess.run(["chown", "-R", _OWNER, str(root)], check=True)

    def __enter__(self) -> PeerContainers:
        docker("network", "create", "--internal", self.network)
        for name in self.names:
            self.containers[name] = docker(
                "run", "--detach", "--init", "--restart=on-failure", f"--network={self.network}",
                f"--network-alias={self.alias(name)}", f"--user={_OWNER}", "--read-only",
                "--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--tmpfs=/tmp:mode=1777",
                "--memory=2g", f"--volume={self.folder(name)}:/etc/fedapp:ro",
                f"--volume={self.state(name)}:/state", SITE, "peer", "--config",
                "/etc/fedapp/site.toml",
            ).stdout.strip()  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for container in self.containers.values():
            docker("rm", "--force", "--volumes", container, check=False)
        docker("network", "rm", self.network, check=False)

    def alias(self, name: str) -> str:
        """Return a site's name on the network."""
        return f"peer-{self.names.index(name)}"

    def folder(self, name: str) -> Path:
        return self.root / self.alias(name)

    def state(self, name: str) -> Path:
        return self.root / f"{self.alias(name)}-state"

    def run(self, name: str) -> RunFolder:
        """Return the folder of results that a site leaves."""
        return RunFolder(self.state(name) / "own" / "run")

    def rounds(self, name: str) -> int:
        """Return the newest round that a site has completed."""
        return max((int(row["round"]) for row in self.run(name).read_metrics()), default=0)

    def cut_off(self, name: str) -> None:
        """Take a site off the network."""
        docker("network", "disconnect", self.network, self.containers[name])

    def heal(self, name: str) -> None:
        """Put it back under its name."""
        alias = f"--alias={self.alias(name)}"
        docker("network", "connect", alias, self.network, self.containers[name])

    def restarts(self, name: str) -> int:
        """Return how often its policy has started a site again."""
        return int(inspect(self.containers[name])["RestartCount"])

    def logs(self, name: str) -> str:
        done = docker("logs", self.containers[name])
        return done.stdout + done.stderr

    def all_logs(self) -> str:
        """Return what all have said, for a failed test's report."""
        return "\n".join(f"==== {name}\n{self.logs(name)}" for name in self.names)

    def stop(self, name: str) -> tuple[int, float]:
        """SIGTERM; return the exit code and the seconds until the end."""
        began = time.monotonic()
        docker("stop", "--time", "10", self.containers[name])
        seconds = time.monotonic() - began
        return int(inspect(self.containers[name])["State"]["ExitCode"]), seconds
