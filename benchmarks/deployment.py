"""A coordinator and its hospitals as processes of this machine, over TLS and with their own keys.

What `fedapp provision`, `keygen`, `superlink`, `superexec`, `enrol`, `supernode` and `site serve`
do on several machines; for the benchmarks of a deployment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.wire_meter import WireMeter
from fedapp.config_provision import read_consortium
from fedapp.provision.consortium import provision
from fedapp.provision.enrol import enrol
from fedapp.provision.folder import Folder
from fedapp.provision.health import answers
from fedapp.provision.keys import make_keys
from fedapp.provision.start import QUIET, program
from fedapp.toml import lines, literal

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "from fedapp.cli import app; app(prog_name='fedapp')"]
PATIENCE = 300.0  # seconds for a process to begin


class Deployment:
    """Use `up`.

    Parameters
    ----------
    folder : Path
        An empty one with a short path: a unix socket's has 107 bytes.
    sites : sequence of str
    data : str
        ``data.source`` of every site.

    Attributes
    ----------
    processes : dict of str to Popen
    meters : dict of str to WireMeter
        Between each site's SuperNode and the SuperLink.
    """

    def __init__(self, folder: Path, sites: Sequence[str], data: str) -> None:
        self.folder, self.sites, self._data = folder, list(sites), data
        self.address = f"127.0.0.1:{free_port()}"
        self.provisioned = Folder(folder / "provisioned")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        host, _, port = self.address.rpartition(":")
        self.meters = {name: WireMeter((host, int(port))) for name in self.sites}

    @contextmanager
    def up(self) -> Iterator[Self]:
        """Start everything; end it with the block."""
        try:
            self._make()
            self._start_all()
            yield self
        finally:
            self._end()

    def run(self, settings: dict[str, Any]) -> Path:
        """Let the coordinator start a run; return its folder, in which it appears after a while."""
        given = {"output-dir": str(self.folder / "runs"), "name": "run", **settings}
        (self.folder / "run.toml").write_text(lines(given))
        flower = self.folder / "flwr"
        flower.mkdir()
        (flower / "config.toml").write_text(
            f'[superlink.loopback]\naddress = "{self.address}"\n'
            f"root-certificates = {literal(str(self.provisioned.authority))}\n"
        )
        subprocess.run(
            [program("flwr"), "run", str(ROOT), "loopback", "-c", str(self.folder / "run.toml")],
            check=True, stdout=sys.stderr, cwd=self.folder,
            env={**_environment(self.folder), **QUIET, "FLWR_HOME": str(flower)},
        )  # fmt: skip
        return self.folder / "runs" / "run"

    def check(self) -> None:
        """End with the words of a process that has ended before its time."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                sys.exit(f"{name} ended with {process.returncode}:\n{self.log(name)[-2000:]}")

    def log(self, name: str) -> str:
        """Return what a process has said."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _make(self) -> None:
        members = "".join(f'[[members]]\nname = "{name}"\n' for name in self.sites)
        file = self.folder / "consortium.toml"
        file.write_text(f'name = "Benchmark"\n[coordinator]\naddress = "{self.address}"\n{members}')
        requests = [make_keys(self._site(name) / "secrets", name).request for name in self.sites]
        provision(read_consortium(file), self.provisioned.path, requests=requests, unseen=True)
        for name in self.sites:
            here = self._site(name)
            (here / "site.toml").write_text(
                lines({"name": name, "socket": "s", "state": "state"})
                + "[data]\n" + lines({"source": self._data})
                + "[policy]\n" + lines({"min-records": 0})
            )  # fmt: skip
            (here / "join.toml").write_text(
                lines(
                    {
                        "site": name,
                        "superlink": self.meters[name].address,
                        "authority": str(self.provisioned.authority),
                        "key": "secrets/supernode.key",
                        "site-address": f"unix:{here}/s",
                        "coordinator": "Benchmark",
                        "runtime-port": free_port(),
                    }
                )
            )

    def _start_all(self) -> None:
        given = ["--from", str(self.provisioned.path)]
        self._start(
            "superlink", "superlink", *given, "--listen", self.address,
            "--database", str(self.folder / "superlink.db"),
        )  # fmt: skip
        self._wait("superlink", lambda: not answers(self.address, self.provisioned.authority))
        enrol(self.provisioned, self.address)
        self._start("superexec", "superexec", *given, "--superlink", self.address)
        for place, name in enumerate(self.sites):
            site, node = f"site-{place}", f"supernode-{place}"
            self._start(site, "site", "serve", "--config", str(self._site(name) / "site.toml"))
            self._wait(site, lambda site=site: "is ready" in self.log(site))  # type: ignore[misc]
            self._start(node, "supernode", "--config", str(self._site(name) / "join.toml"))
        for place in range(len(self.sites)):
            node = f"supernode-{place}"
            self._wait(node, lambda node=node: "SuperNode ID: " in self.log(node))  # type: ignore[misc]

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*COMMAND, *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env={**_environment(self.folder), "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def _wait(self, name: str, condition: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            self.check()
            if time.monotonic() > end:
                sys.exit(f"{name} did not begin within {PATIENCE:g} s:\n{self.log(name)[-2000:]}")
            time.sleep(0.2)

    def _end(self) -> None:
        # Those that call before those that are called: they say goodbye.
        for process in reversed(list(self.processes.values())):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for meter in self.meters.values():
            meter.close()

    def _site(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a run's metrics so far."""
    file = folder / "metrics.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, "HOME": str(home)}
