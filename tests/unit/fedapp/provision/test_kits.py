"""What a member's kit holds, and what it opens."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from provisioning import RUN, Coordinator

from fedapp.config_join import read_join
from fedapp.config_peer import load_peer
from fedapp.config_policy import PolicySection
from fedapp.config_site import load_site_file
from fedapp.errors import ConfigError


def test_a_kit_holds_what_each_program_reads(coordinator: Coordinator) -> None:
    coordinator.extra = f'[peers]\nrun = "{RUN}"\ntopology = "ring"\n'
    coordinator.names = ["St. Gallen", "Basel", "Genève"]
    coordinator.write()
    coordinator.complete()
    kit = coordinator.folder.kit("St. Gallen")

    join, peer = read_join(kit / "join.toml"), load_peer(kit / "peer.toml")
    site_peer = load_peer(kit / "site-peer.toml")

    assert (join.site, join.superlink) == ("St. Gallen", "fl.test:8000")
    assert (join.authority, join.key) == (kit / "authority.pem", kit / "secrets/supernode.key")
    assert (peer.name, peer.run, peer.neighbours) == ("St. Gallen", RUN, ("Basel", "Genève"))
    assert (peer.settings_file, site_peer.settings_file) == ("", str(kit / "settings.toml"))
    assert site_peer.store == "/state/store"
    assert load_site_file(kit / "site.toml").peer is None
    # But for what they do and where it is kept, one is the other.
    alike = replace(site_peer, settings_file="", store=peer.store, origins=peer.origins)
    assert alike == peer
    fingerprint = coordinator.provision().fingerprint
    assert fingerprint in (kit / "fingerprints.txt").read_text(encoding="utf-8")
    assert fingerprint in (kit / "README.md").read_text(encoding="utf-8")
    for path in kit.iterdir():
        assert "$site" not in path.read_text(encoding="utf-8")
    for name in ("README.md", ".env", "site.toml"):
        assert "St. Gallen" in (kit / name).read_text(encoding="utf-8")


def test_a_member_that_does_not_train_gets_no_file_to_train_with(coordinator: Coordinator) -> None:
    coordinator.extra = f'[peers]\nrun = "{RUN}"\n'
    coordinator.write()
    coordinator.complete()
    kit = coordinator.folder.kit("Zürich")
    text = (kit / "site-peer.toml").read_text(encoding="utf-8")
    file = coordinator.file.read_text(encoding="utf-8")
    coordinator.file.write_text(file.rstrip() + "\ntrains = false\n", encoding="utf-8")

    coordinator.provision()

    assert not (kit / "site-peer.toml").exists()
    assert (coordinator.folder.kit("Basel") / "site-peer.toml").exists()
    assert load_peer(kit / "peer.toml").name == "Zürich"
    (kit / "site-peer.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="says of 'Zürich' trains = false"):
        load_peer(kit / "site-peer.toml")


def test_the_port_that_a_kit_opens_is_the_one_that_the_others_call(
    coordinator: Coordinator,
) -> None:
    coordinator.peers = {"Basel": "[2001:db8::1]:19443"}
    coordinator.extra = f'[peers]\nrun = "{RUN}"\n'
    coordinator.write()
    coordinator.complete()

    ports = {
        name: re.findall(
            "^FEDAPP_PEER_PORT=(.*)$", (coordinator.folder.kit(name) / ".env").read_text(), re.M
        )
        for name in ("Basel", "Zürich")
    }
    assert ports == {"Basel": ["19443"], "Zürich": ["9443"]}


def test_a_kit_of_a_consortium_without_peers_names_none(coordinator: Coordinator) -> None:
    coordinator.extra = f'[peers]\nrun = "{RUN}"\n'
    coordinator.write()
    coordinator.complete()
    assert (coordinator.folder.kit("Basel") / "peers.toml").exists()
    coordinator.extra = ""
    coordinator.write()

    assert coordinator.provision().kits == ("Basel", "Zürich")
    names = {path.name for path in coordinator.folder.kit("Basel").iterdir()}
    assert not names & {"peers.toml", "peer.toml", "site-peer.toml"}
    assert coordinator.provision().kits == ()


def test_a_kits_site_file_is_one_that_the_service_reads(coordinator: Coordinator) -> None:
    coordinator.complete()
    kit = coordinator.folder.kit("Zürich")

    site, join = load_site_file(kit / "site.toml"), read_join(kit / "join.toml")

    assert site.name == join.site == "Zürich"
    assert f"unix:{site.socket}" == join.site_address
    assert site.check.superlink == join.superlink
    assert Path(site.check.authority) == join.authority
    assert site.policy.coordinators == (join.coordinator,) == ("Heart",)


def test_a_kits_site_file_names_every_rule_of_the_policy(coordinator: Coordinator) -> None:
    """What is not in it no board decides about."""
    coordinator.complete()
    text = (coordinator.folder.kit("Basel") / "site.toml").read_text(encoding="utf-8")
    rules = {name.replace("_", "-") for name in PolicySection.model_fields}
    assert rules == set(tomllib.loads(text)["policy"])
