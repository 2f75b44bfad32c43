"""Who is let in at the door of a real coordinator, while a run goes on behind it: members alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from engine import docker
from interface import ROOT
from provisioning import Coordinator
from stack import CORE, HOSPITALS, NGINX, Stack
from stack_run import StackRun

from fedapp.certificates import Issuer
from fedapp.provision.folder import Folder
from fedapp.provision.keys import read_peer_key

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

NETWORK = "cleveland"  # whose SuperNode is at home there; the strangers stand beside it
YESTERDAY = "yesterday"  # a coordinator whose certificate has expired
JOIN = ("supernode", "--config", "/etc/fedapp/join.toml", "--home", "/tmp/flower")


class Door:
    """The consortium's files, and containers that stand at its coordinator's door."""

    def __init__(self, stack: Stack, root: Path) -> None:
        self.stack, self.root = stack, root
        self.demo = stack.folder / "deploy" / "demo"
        self.folder = Folder(self.demo / "provisioned")
        self.other = Coordinator(root / "other", ["Cleveland"], "coordinator:8443")
        self.other.complete()
        lines = (stack.folder / ".env").read_text(encoding="utf-8").splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        self.owner = f"{values['FEDAPP_UID']}:{values['FEDAPP_GID']}"

    def kit(self, name: str, **changes: str) -> Path:
        """Return a copy of Cleveland's files as its operator has them, some settings changed."""
        folder = self.root / name
        shutil.copytree(self.folder.kit("Cleveland"), folder)
        shutil.copytree(self.demo / "hospitals" / "Cleveland" / "secrets", folder / "secrets")
        join = folder / "join.toml"
        gone = ("site-address", *changes)
        kept = [line for line in join.read_text().splitlines() if not line.startswith(gone)]
        kept += [*(f'{k} = "{v}"' for k, v in changes.items()), "in-process = true"]
        join.write_text("\n".join(kept))
        return folder

    def options(self, folder: Path | None) -> list[str]:
        """Return what a container is started with, as confined as the consortium's own."""
        if folder is not None:
            subprocess.run(["chown", "-R", self.owner, str(folder)], check=True)
        mount = [] if folder is None else [f"--volume={folder}:/etc/fedapp:ro"]
        return [
            "--user", self.owner, "--read-only", "--tmpfs=/tmp:mode=1777", "--cap-drop=ALL", *mount,
        ]  # fmt: skip

    def call(
        self, folder: Path | None, *command: str, entrypoint: str = "fedapp"
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the core image at the door and return how it ended."""
        given = [*self.options(folder), f"--entrypoint={entrypoint}", "IMAGE", *command]
        return self.stack.one_off(CORE, *given, network=NETWORK, timeout=240)

    def coordinator_of_yesterday(self) -> Path:
        """Make a coordinator's folder whose certificate the authority issued, for a past day."""
        place = self.root / YESTERDAY
        shutil.copytree(self.folder.path, place)
        root = x509.load_pem_x509_certificate(self.folder.authority.read_bytes())
        issuer = Issuer(root, read_peer_key(self.folder.authority_key))
        key = read_peer_key(self.folder.superlink_key).public_key()
        old = issuer.server("coordinator", key, timedelta(seconds=-1), [YESTERDAY, "superlink"])
        Folder(place).superlink.write_bytes(old.public_bytes(Encoding.PEM))
        shutil.copy2(ROOT / "deploy" / "nginx.conf", place / "nginx.conf")
        return place


@pytest.fixture(scope="module")
def door(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Door:
    return Door(stack, tmp_path_factory.mktemp("door"))


@pytest.fixture(scope="module")
def yesterday(door: Door) -> Iterator[Path]:
    """A gate with an expired certificate, in a container on the hospital's network."""
    place = door.coordinator_of_yesterday()
    container = docker(
        "run", "--detach", f"--network={door.stack.name}_{NETWORK}", f"--network-alias={YESTERDAY}",
        *door.options(place), "--entrypoint=nginx", NGINX,
        "-e", "stderr", "-c", "/etc/fedapp/nginx.conf", "-g", "daemon off;",
    ).stdout.strip()  # fmt: skip
    yield place
    docker("rm", "--force", container)


def test_nobody_but_members_gets_in_and_the_run_goes_on(
    stack: Stack, door: Door, yesterday: Path, undisturbed: StackRun
) -> None:
    undisturbed.wait_for_round(1)
    # A whole kit that fell into a stranger's hands, who has keys of their own.
    stranger = door.kit("stranger")
    theirs = door.other.root / "Cleveland" / "supernode.key"
    shutil.copy2(theirs, stranger / "secrets" / "supernode.key")
    # A member who was given another authority.
    misled = door.kit("misled")
    shutil.copy2(door.other.folder.authority, misled / "authority.pem")
    late = door.kit("late", superlink=f"{YESTERDAY}:8443")
    keyless = door.kit("keyless")
    plain = ("--insecure", "--superlink", "coordinator:8443", "--isolation", "process")
    secure = ("--root-certificates", "/etc/fedapp/authority.pem", *plain[1:])
    calls = {
        "stranger": (stranger, *JOIN),
        "misled": (misled, *JOIN),
        "late": (late, *JOIN),
        "keyless": (keyless, *secure),
        "plain": (None, *plain),
    }

    def call(name: str) -> subprocess.CompletedProcess[str]:
        program = "flower-supernode" if name in ("keyless", "plain") else "fedapp"
        return door.call(*calls[name], entrypoint=program)

    with ThreadPoolExecutor() as pool:
        ended = dict(zip(calls, pool.map(call, calls), strict=True))

    for name, words in {
        "stranger": "[code: 2004]",
        "keyless": "[code: 2001]",
        "misled": "certificate verify failed: unable to get local issuer certificate",
        "late": "certificate verify failed: certificate has expired",
        "plain": "400",
    }.items():
        said = ended[name].stdout + ended[name].stderr
        assert words in said, f"{name}: {said}"
        assert "Exit Code: 305" in said
        assert ended[name].returncode == 1
        assert "SuperNode ID" not in said
    assert undisturbed.result() == 0, undisturbed.output
    listed = json.loads(
        stack.compose("run", "--rm", "-T", "flwr", "supernode", "list", "fedapp", "--format=json")
    )
    assert [node["status"] for node in listed["nodes"]] == ["online"] * len(HOSPITALS)


def test_a_superlink_with_an_expired_certificate_does_not_start(
    door: Door, yesterday: Path
) -> None:
    listen = ("--listen", "0.0.0.0:8000", "--database", "/tmp/superlink.db")
    done = door.call(yesterday, "superlink", "--from", "/etc/fedapp", *listen)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: the SuperLink's certificate /etc/fedapp/superlink.pem is")
    assert "run `fedapp provision` to have it issued anew, or set the clock" in done.stderr
    assert done.stderr.count("\n") == 1
