"""The consortium of docker-compose.yml as a compose project of its own, watched from outside.

It has a copy of everything in a folder of its own, its own keys, networks and volumes, and no port
on the host: several may run beside each other and beside a real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from engine import EngineError, containers, docker, inspect
from interface import ROOT
from stack_run import StackRun

CORE = os.environ.get("FEDAPP_CORE_IMAGE", "fedapp-core:0.1.0")
SITE = os.environ.get("FEDAPP_SITE_IMAGE", "fedapp-site:0.1.0")
NGINX = os.environ.get("FEDAPP_NGINX_IMAGE", "fedapp-nginx")
HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "long-beach": "VA Long Beach"}
"""Services and networks are named by the key, sites in runs by the value."""
STAYING = (
    "coordinator", "superlink", "superexec",
    *(f"{part}-{key}" for key in HOSPITALS for part in ("supernode", "site")),
)  # fmt: skip
"""All services but those that end by themselves."""
TINY = {
    "model.source": "embedded:tiny-encoder", "model.max-length": 16, "train.threads": 1,
    "federation.local-only": False,
}  # fmt: skip
"""Settings for a run whose rounds take seconds: for faults, not for learning."""
HEALTH_INTERVAL = "10s"
_FILES = (
    "docker-compose.yml", "pyproject.toml", "README.md", "LICENSE",
    "fedapp", "client_app", "server_app", "deploy",
)  # fmt: skip


class Stack:
    """Containers of one consortium.

    Parameters
    ----------
    folder : Path
        Where the project's copy is put; must not be there yet.
    overlay : str
        A further compose file's text, on top of docker-compose.yml (for instance a small state
        volume, or another healthcheck interval).
    environment : mapping of str
        More lines of ``.env``, for instance ``FEDAPP_UID``.

    Attributes
    ----------
    folder : Path
        The project: docker-compose.yml, deploy/demo/{provisioned,hospitals,data,runs}. Keys and
        certificates may be changed here between `down` and `up`, or before a service's restart.
    """

    def __init__(
        self, folder: Path, *, overlay: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.name = folder, f"fedapp-test-{uuid.uuid4().hex[:8]}"
        self._runs: list[StackRun] = []
        self._environment = {
            "COMPOSE_PROJECT_NAME": self.name,
            "FEDAPP_NGINX_IMAGE": NGINX,
            **(environment or {}),
        }
        folder.mkdir(parents=True)
        for each in _FILES:
            if (ROOT / each).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "demo")
                shutil.copytree(ROOT / each, folder / each, ignore=ignored)
            else:
                shutil.copy2(ROOT / each, folder / each)
        self._files = ["docker-compose.yml", "quick.yml"]
        (folder / "quick.yml").write_text(self._quick(), encoding="utf-8")
        if overlay:
            (folder / "overlay.yml").write_text(overlay, encoding="utf-8")
            self._files.append("overlay.yml")
        self._environment["COMPOSE_FILE"] = os.pathsep.join(self._files)

    @property
    def uid(self) -> str:
        """The account of all containers, by number."""
        return self._values()["FEDAPP_UID"]

    @property
    def gid(self) -> str:
        """The group of all containers, by number."""
        return self._values()["FEDAPP_GID"]

    # ---- the whole

    def setup(self) -> None:
        """Make keys, certificates, kits and records with ``deploy/setup.sh``."""
        self._call(str(self.folder / "deploy" / "setup.sh"), timeout=180)

    def up(self, *services: str, within: float = 300.0) -> None:
        """``docker-compose up -d``, then wait until all services that stay are healthy."""
        self.compose("up", "-d", "--no-color", *services, timeout=within)
        self.wait_healthy(*(services or STAYING), within=within)

    def down(self) -> None:
        """End and remove containers, networks and volumes; the folder stays."""
        for run in self._runs:
            run.close()
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10", timeout=180)

    def compose(self, *arguments: str, timeout: float = 180.0) -> str:
        """Run docker-compose in the project and return what it printed."""
        return self._call("docker-compose", *arguments, timeout=timeout)

    def run(self, name: str, **settings: Any) -> StackRun:
        """Start a run in the background with ``deploy/run.sh``; settings as keys with dots.

        ``stack.run("first", **TINY, **{"federation.rounds": 4})``
        """
        run = StackRun(self.folder, name, settings, self._environment)
        self._runs.append(run)
        return run

    # ---- one service

    def container(self, service: str) -> str:
        """Return the id of a service's container, running or not."""
        found = containers(project=self.name, service=service, oneoff="False")
        if len(found) != 1:
            raise EngineError(f"{service} has {len(found)} containers in {self.name}, expected 1")
        return found[0]

    def exec(
        self, service: str, *command: str, user: str = "", check: bool = True, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container."""
        who = ["--user", user] if user else []
        place = self.container(service)
        return docker("exec", *who, place, *command, check=check, timeout=timeout)

    def one_off(
        self, image: str, *arguments: str, network: str, check: bool = False, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a container of an image that is no service on a network of the project, and wait.

        ``arguments`` are options of ``docker run`` (mounts, entrypoint), then the image is put
        where ``"IMAGE"`` stands among them, then the command.
        """
        place = arguments.index("IMAGE")
        given = [*arguments[:place], image, *arguments[place + 1 :]]
        joined = f"--network={self.name}_{network}"
        label = f"--label=com.docker.compose.project={self.name}"
        return docker("run", "--rm", joined, label, *given, check=check, timeout=timeout)

    def address(self, service: str, network: str) -> str:
        """Return a service's IP address on a network of the project."""
        networks = inspect(self.container(service))["NetworkSettings"]["Networks"]
        found: str = networks[f"{self.name}_{network}"]["IPAddress"]
        return found

    def kill(self, service: str, signal: str = "KILL") -> None:
        """Send a signal to a service's first process, as its restart policy does not see it."""
        docker("kill", "--signal", signal, self.container(service))

    def stop(self, service: str, grace: int = 10) -> float:
        """SIGTERM, then SIGKILL after ``grace`` s; return the seconds that it took."""
        began = time.monotonic()
        docker("stop", "--time", str(grace), self.container(service))
        return time.monotonic() - began

    def start(self, service: str) -> None:
        """Start a stopped or killed service's container again."""
        docker("start", self.container(service))

    def pause(self, service: str) -> None:
        """Freeze a service: its connections stay, and it never answers."""
        docker("pause", self.container(service))

    def unpause(self, service: str) -> None:
        """Let a frozen service go on."""
        docker("unpause", self.container(service))

    def disconnect(self, service: str, network: str) -> None:
        """Take a service off a network of the project (``hungary``, ``inside``, ``peers``)."""
        docker("network", "disconnect", f"{self.name}_{network}", self.container(service))

    def connect(self, service: str, network: str) -> None:
        """Put a service back, under its own name."""
        place = f"{self.name}_{network}"
        docker("network", "connect", "--alias", service, place, self.container(service))

    # ---- what is seen from outside

    def state(self, service: str) -> dict[str, Any]:
        """Return the engine's ``State``: Status, Running, ExitCode, Pid, Health, OOMKilled ..."""
        found: dict[str, Any] = inspect(self.container(service))["State"]
        return found

    def restarts(self, service: str) -> int:
        """Return how often the restart policy has started a service again."""
        return int(inspect(self.container(service))["RestartCount"])

    def health(self, service: str) -> tuple[str, str]:
        """Return a service's health and what its check said last; ("none", "") without a check."""
        health = self.state(service).get("Health")
        if not health:
            return "none", ""
        said = health["Log"][-1]["Output"].strip() if health["Log"] else ""
        return health["Status"], said

    def logs(self, service: str) -> str:
        """Return all that a service's container has printed."""
        done = docker("logs", self.container(service))
        return done.stdout + done.stderr

    def all_logs(self) -> str:
        """Return state and last lines of every container, for a failed test's report."""
        parts = []
        for place in containers(project=self.name):
            seen = inspect(place)
            state, name = seen["State"], seen["Name"].lstrip("/")
            words = f"{state['Status']}, exit code {state['ExitCode']}"
            if health := state.get("Health"):
                last = health["Log"][-1]["Output"].strip() if health["Log"] else ""
                words += f", {health['Status']}: {last}"
            done = docker("logs", "--tail", "40", place, check=False)
            parts.append(f"==== {name} ({words})\n{done.stdout}{done.stderr}")
        return "\n".join(parts)

    def wait_healthy(self, *services: str, within: float = 300.0) -> None:
        """Wait until each is running, and healthy if it has a check."""
        for service in services:
            self.wait_until(
                lambda service=service: (  # type: ignore[misc]
                    self.state(service)["Running"]
                    and self.health(service)[0] in ("healthy", "none")
                ),
                within,
                f"{service} to be healthy",
            )

    def wait_until(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Wait until ``condition()``; fails after ``within`` seconds."""
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() >= end:
                raise AssertionError(f"waited {within:.0f} s in vain for {what}")
            time.sleep(0.5)

    def _values(self) -> dict[str, str]:
        lines = (self.folder / ".env").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines) | self._environment

    def _quick(self) -> str:
        """Health is looked at more often than in earnest, so that tests need not wait."""
        text = (self.folder / "docker-compose.yml").read_text(encoding="utf-8")
        services = {
            name: {"healthcheck": {"interval": HEALTH_INTERVAL}}
            for name, service in yaml.safe_load(text)["services"].items()
            if "healthcheck" in service
        }
        return str(yaml.safe_dump({"services": services}))

    def _call(self, *command: str, timeout: float) -> str:
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL, env={**os.environ, **self._environment},
        )  # fmt: skip
        if done.returncode:
            raise EngineError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout
