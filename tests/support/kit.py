"""A hospital's folder as the coordinator sent it, and its containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import containers, docker, inspect


class Kit:
    """A copy of a kit with this machine's ``.env``.

    Parameters
    ----------
    sent : Path
        What the coordinator made.
    folder : Path
        The hospital's own; must not be there yet.
    project : str
        Of compose.
    given : mapping of str
        Lines of ``.env``, without their ``FEDAPP_``; UID and GID among them.

    Attributes
    ----------
    files : list of str
        Compose files, as `compose` names them; may be changed.
    """

    def __init__(self, sent: Path, folder: Path, project: str, given: Mapping[str, str]) -> None:
        shutil.copytree(sent, folder)
        self.folder, self.project, self._given = folder, project, given
        self.files = ["docker-compose.yml"]
        (folder / "models").mkdir()
        with (folder / ".env").open("a") as stream:
            stream.writelines(f"FEDAPP_{name}={value}\n" for name, value in given.items())
        self.own()

    def own(self) -> None:
        """Give every file in the folder to the account that the containers run as."""
        if os.geteuid() == 0:
            owner = f"{self._given['UID']}:{self._given['GID']}"
            subprocess.run(["chown", "-R", owner, str(self.folder)], check=True)

    def compose(
        self, *arguments: str, overlay: str = "", timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run docker-compose as the kit's README says, with an overlay of its if one is named."""
        files = [word for name in (*self.files, overlay) if name for word in ("-f", name)]
        return subprocess.run(
            ["docker-compose", "--project-name", self.project, *files, *arguments],
            cwd=self.folder, capture_output=True, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        (found,) = containers(project=self.project, service=service, oneoff="False")
        return found

    def running(self, service: str) -> bool:
        """Whether a container of a service runs; one that could not be replaced is left stopped."""
        found = containers(project=self.project, service=service, oneoff="False")
        return any(inspect(each)["State"]["Running"] for each in found)

    def health(self, service: str) -> tuple[str, str]:
        """Return a service's health and what its check said last."""
        health = inspect(self.container(service))["State"]["Health"]
        said = health["Log"][-1]["Output"].strip() if health["Log"] else ""
        return str(health["Status"]), said

    def logs(self, service: str) -> str:
        """Return all that a service's container has printed."""
        done = docker("logs", self.container(service))
        return done.stdout + done.stderr

    def networks(self, service: str) -> list[str]:
        """Return what a service's container is on."""
        return sorted(inspect(self.container(service))["NetworkSettings"]["Networks"])

    def fetch(self, service: str, path: str, target: Path) -> Path:
        """Copy a file or folder out of a service's container."""
        docker("cp", f"{self.container(service)}:{path}", str(target))
        return target

    def events(self) -> list[str]:
        """Return what kinds of events the site's audit log has."""
        return [str(event["event"]) for event in self.audit()]

    def audit(self) -> list[dict[str, Any]]:
        """Return the events of the site's audit log."""
        said = self.compose("exec", "-T", "site", "cat", "/state/site/audit.jsonl").stdout
        return [json.loads(line)["body"] for line in said.splitlines()]

    def down(self) -> None:
        """End and remove containers, networks and volumes; the folder stays."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")
