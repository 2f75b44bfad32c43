"""`fedapp site join`: what must be right before a SuperNode starts, and that it then does."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_desk import NAME, Service, write_site
from tls_servers import Issuer, listening
from typer.testing import CliRunner

from fedapp.cli import app, toml
from fedapp.provision.keys import make_keys


class Hospital:
    """A hospital's folder, its service and the coordinator's port."""

    def __init__(self, folder: Path, port: int, authority: Path, service: Service) -> None:
        make_keys(folder / "secrets", NAME)
        self.file = folder / "join.toml"
        self.fields = {
            "site": NAME,
            "superlink": f"127.0.0.1:{port}",
            "authority": str(authority),
            "key": "secrets/supernode.key",
            "site-address": service.address,
        }

    def join(self, monkeypatch, **changes):
        """Run the command; return its result and what would have been started."""
        started = []
        monkeypatch.setattr("fedapp.cli.start.become", lambda *given: started.append(given))
        self.file.write_text(toml.lines({**self.fields, **changes}))
        command = ["site", "join", "--config", str(self.file), "--home", str(self.file.parent)]
        return CliRunner().invoke(app, command, env={"COLUMNS": "1000"}), started


@pytest.fixture
def hospital(tmp_path):
    issuer = Issuer()
    with (
        listening(issuer.issue(tmp_path)) as port,
        Service(write_site(tmp_path)) as service,
    ):
        yield Hospital(tmp_path, port, issuer.write(tmp_path), service)


def test_a_hospital_that_is_ready_joins(hospital, monkeypatch):
    result, started = hospital.join(monkeypatch)

    assert result.exit_code == 0, result.output
    ((command, _, environment),) = started
    assert "--auth-supernode-private-key" in command
    assert f'site="{NAME}"' in command[command.index("--node-config") + 1]
    assert float(environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]) < 1
    assert result.output.count(" ok ") == 8  # service, key, certificates twice, and the way


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"site-address": "unix:/nowhere/s"}, "start `fedapp site serve` first"),
        ({"site-address": ""}, "would read the records itself"),
        ({"site": "Basel"}, f"is that of {NAME}, expected Basel"),
        ({"key": "authority.pem"}, "supernode.key"),
        ({"superlink": "127.0.0.1:9"}, "closed"),
    ],
)
def test_what_is_not_right_is_named_and_nothing_starts(hospital, monkeypatch, changes, words):
    if "key" in changes:  # a key that others can read
        (hospital.file.parent / "secrets/supernode.key").chmod(0o644)
        changes = {}

    result, started = hospital.join(monkeypatch, **changes)

    assert result.exit_code == 1
    assert words in result.output.replace("\n", " ")
    assert started == []
