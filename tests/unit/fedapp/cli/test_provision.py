"""The coordinator's and the hospitals' commands as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from provisioning import Coordinator
from typer.testing import CliRunner, Result

from fedapp.cli import app
from fedapp.cli import start as commands


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fedapp(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_way_from_a_file_to_a_signed_member(here: Path) -> None:
    Coordinator(here, ["Basel"])

    first = fedapp("provision", "consortium.toml")
    assert first.exit_code == 0
    assert "Made the consortium's authority" in first.stdout
    assert "Basel: no signing request yet" in first.stdout
    assert "Next: send Basel the kit" in first.stdout

    made = fedapp("site", "keygen", "--name", "Basel", "--to", "secrets")
    assert made.exit_code == 0
    fingerprint = made.stdout.split("fingerprint ")[1].splitlines()[0]
    assert fingerprint.count(" ") == 15
    assert "Next: send the request to the coordinator" in made.stdout

    request = "secrets/request.pem"
    unasked = fedapp("provision", "consortium.toml", "--sign", request)
    assert unasked.exit_code == 2
    assert "the request of 'Basel' came without its fingerprint" in unasked.stderr
    assert fingerprint not in unasked.output, "whoever reads it off the screen asks nobody"
    assert not list(here.rglob("certificate.pem"))

    unseen = fedapp("provision", "consortium.toml", "--sign", request, "--unseen")
    assert unseen.exit_code == 0
    assert "warning: a request was signed unseen" in unseen.stderr
    assert f"fingerprint {fingerprint}" in unseen.stdout
    assert "Basel: certificate issued, until" in unseen.stdout

    again = fedapp("provision", "consortium.toml", "--sign", request, "--fingerprint", fingerprint)
    assert again.exit_code == 0
    assert again.stderr == ""
    assert "Basel: certificate kept" in again.stdout
    assert "Kits changed: none" in again.stdout
    assert "Next: fedapp superlink --from" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["provision", "absent.toml"], "absent.toml does not exist"),
        (["provision", "consortium.toml", "--sign", "absent"], "signing request"),
        (["provision", "consortium.toml", "--renew", "Bern"], "'Bern' is no present member"),
        (["provision", "consortium.toml", "--sign", "consortium.toml"], "holds two requests"),
        (["site", "keygen", "--name", "", "--to", "x"], "cannot be certified"),
        (["superlink", "--from", "absent"], "authority.pem does not exist"),
        (["superexec", "--from", "absent", "--superlink", "x:1"], "authority.pem does not exist"),
        (["supernode", "--config", "absent"], "absent does not exist"),
        (["enrol", "--from", "absent", "--superlink", "x:1"], "authority.pem does not exist"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    here: Path, arguments: list[str], words: str
) -> None:
    Coordinator(here, ["Basel"])
    result = fedapp(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_the_start_commands_become_flowers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(here, ["Basel"])
    coordinator.complete()
    kit = coordinator.folder.kit("Basel")
    coordinator.root.joinpath("Basel").rename(kit / "secrets")
    seen: list[tuple[list[str], Path]] = []
    monkeypatch.setattr(commands, "become", lambda command, home, _: seen.append((command, home)))

    assert fedapp("superlink", "--listen", "127.0.0.1:8000").exit_code == 0
    assert fedapp("superexec", "--superlink", "localhost:8000", "--home", "own").exit_code == 0
    assert fedapp("supernode", "--config", str(kit / "join.toml")).exit_code == 0

    names = [[Path(part).name for part in command] for command, _ in seen]
    assert names[0][2:4] == ["superlink.py", "flower-superlink"]
    assert names[1][0] == "flower-superexec"
    assert names[2][2:4] == ["supernode.py", "flower-supernode"]
    home = here / "home" / ".fedapp"
    assert [h for _, h in seen] == [home / "superlink", here / "own", home / "supernode-Basel"]
