"""What a hospital gets, by itself: its kit in the place of the demonstration's services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import Kit
from stack import HOSPITALS, TINY, Stack

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

KEY, SITE = "hungary", HOSPITALS["hungary"]
SMALL = (
    "model.source='embedded:tiny-encoder' model.max-length=16 federation.rounds=1 "
    "train.max-steps=2 data.labels='no heart disease,heart disease'"
)
OVERLAY = """
services:
  supernode: {{healthcheck: {{interval: 5s}}}}
  site: {{healthcheck: {{interval: 5s}}}}
networks:
  outside: {{external: true, name: {network}}}
  default: {{external: true, name: {network}}}
"""


@pytest.fixture
def kit(stack: Stack, tmp_path: Path) -> Iterator[Kit]:
    """Hungary's kit on the stack's network, in the place of its services in the demonstration."""
    demo = stack.folder / "deploy" / "demo"
    given = {"UID": stack.uid, "GID": stack.gid, "DATA": str(demo / "data" / SITE)}
    sent = demo / "provisioned" / "kits" / SITE
    one = Kit(sent, tmp_path / "kit", f"{stack.name}-kit", given)
    (one.folder / "overlay.yml").write_text(OVERLAY.format(network=f"{stack.name}_{KEY}"))
    one.files.append("overlay.yml")
    services = [f"{part}-{KEY}" for part in ("supernode", "site")]
    for service in services:
        stack.stop(service)
    yield one
    one.down()
    for service in reversed(services):
        stack.start(service)
    stack.wait_healthy(*services)


def test_a_hospital_makes_keys_checks_and_joins_with_what_is_in_its_kit(
    stack: Stack, kit: Kit
) -> None:
    made = kit.compose("run", "--rm", "-T", "keygen")
    secrets = kit.folder / "secrets"
    assert made.returncode == 0, made.stderr
    assert (secrets / "supernode.key").stat().st_mode & 0o077 == 0
    assert (secrets / "request.pem").exists()
    # The demonstration's coordinator knows this hospital by the keys of deploy/setup.sh.
    known = stack.folder / "deploy" / "demo" / "hospitals" / SITE / "secrets" / "supernode.key"
    (secrets / "supernode.key").write_bytes(known.read_bytes())

    checked = kit.compose("run", "--rm", "-T", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Next: fedapp site dry-run" in checked.stdout
    for step, words in (("dry-run", "would leave: "), ("train-local", "Nothing has left")):
        settings = ("--config", "/etc/fedapp/site.toml", "--run", SMALL)
        tried = kit.compose("run", "--rm", "-T", "try", step, *settings)
        assert tried.returncode == 0, tried.stdout + tried.stderr
        assert words in tried.stdout

    joined = kit.compose("up", "-d")
    assert joined.returncode == 0, joined.stderr
    for service in ("site", "supernode"):
        stack.wait_until(
            lambda s=service: kit.health(s)[0] == "healthy", 180, f"the kit's {service}"
        )  # type: ignore[misc]
    run = stack.run("kit", **TINY, **{"federation.rounds": 1, "train.max-steps": 2})
    assert run.result() == 0, run.output
    assert sorted(run.summary()["sites"]) == sorted(HOSPITALS.values())
    assert "answered" in kit.events()
    assert kit.networks("site") == ["none"]
    assert kit.compose("exec", "-T", "supernode", "ls", "/data").returncode != 0
