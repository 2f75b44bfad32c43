"""`fedapp site serve` as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import grpc
from desk import COMMAND

from client_app.service.calls import HEALTH, target
from client_app.service.proto import site_pb2


class SiteProcess:
    """A service of the site whose file is ``path``; use it with ``with``."""

    def __init__(self, path: Path) -> None:
        self.path, self.socket = path, path.parent / "run" / "site.sock"
        self.process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    def __enter__(self) -> SiteProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it would begin a task at once."""
        self.process = subprocess.Popen(
            [*COMMAND, "site", "serve", "--config", str(self.path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        end = time.monotonic() + 120
        while not (health := self.health()) or not health.ready:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.1)

    def health(self) -> site_pb2.HealthReply | None:
        with grpc.insecure_channel(target(self.socket)) as channel:
            try:
                data = channel.unary_unary(HEALTH)(b"", timeout=2)
            except grpc.RpcError:
                return None
        return site_pb2.HealthReply.FromString(data)

    def wait_for_step(self, step: int) -> None:
        """Wait until a training has come so far."""
        end = time.monotonic() + 120
        while f"step {step}" not in (getattr(self.health(), "doing", "")):
            assert time.monotonic() < end
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)
            self.process.communicate()

    def terminate(self) -> tuple[int, float, str]:
        """Send SIGTERM; return the exit code, the seconds until then and the output."""
        assert self.process is not None
        began = time.monotonic()
        self.process.terminate()
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, time.monotonic() - began, output
