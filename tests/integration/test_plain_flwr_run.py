"""`flwr run .` with Flower's own defaults: its daemon, its `uv sync`, our overrides."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interface import ROOT

from fedapp.cli.process import Process

pytestmark = pytest.mark.slow

SCRIPTS = Path(sysconfig.get_path("scripts"))
SETTINGS = {
    "method": "'svd'",
    "name": "'plain'",
    "model.source": "'embedded:tiny-encoder'",
    "data.max-examples": "40",
    "train.max-steps": "1",
    "federation.rounds": "1",
    "federation.local-only": "false",
}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "UV_"))}
    values |= {
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        # Flower's uv gets no network and nothing that an earlier sync has downloaded.
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
    }
    yield values
    _end_daemon(port)


def test_flwr_run_works_as_it_is(environment: dict[str, str], tmp_path: Path) -> None:
    assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION" not in environment
    overrides = " ".join(f"{k}={v}" for k, v in SETTINGS.items()) + f" output-dir='{tmp_path}'"

    flwr = [str(SCRIPTS / "flwr")]
    done = subprocess.run(
        [*flwr, "run", ".", "--stream", "--run-config", overrides],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip

    output = done.stdout + done.stderr
    assert "No additional application dependencies needed installation" in output, output
    status = json.loads((tmp_path / "plain" / "status.json").read_text())
    assert status["state"] == "completed", output
    settings = json.loads((tmp_path / "plain" / "config.json").read_text())["settings"]
    assert (settings["method"], settings["federation.rounds"]) == ("svd", 1)
    listed = subprocess.run(
        [*flwr, "list", "--format", "json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert [run["status"] for run in json.loads(listed.stdout)["runs"]] == ["finished:completed"]


def _end_daemon(port: int) -> None:
    """End the daemon that `flwr` has detached: the one with our port on its command line."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(w.endswith(b"flower-superlink") for w in words) and str(port).encode() in words:
            Process.of(int(entry.name)).terminate(15.0)
    time.sleep(0.1)
