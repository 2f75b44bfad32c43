"""What the containers may do, read from the files that start them; the engine is not asked."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from interface import ROOT

from client_app.data.sources.heart import read_heart
from fedapp.config_peer import read_settings
from fedapp.config_provision import ConsortiumFile, read_consortium

KIT = ROOT / "fedapp" / "provision" / "kit"
DEMO = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
DEMO_PEERS = yaml.safe_load((ROOT / "deploy" / "compose.peers.yml").read_text(encoding="utf-8"))
HOSPITAL = yaml.safe_load((KIT / "docker-compose.yml").read_text(encoding="utf-8"))
PEER = yaml.safe_load((KIT / "compose.peers.yml").read_text(encoding="utf-8"))
SITE_PEER = yaml.safe_load((KIT / "compose.site-peer.yml").read_text(encoding="utf-8"))
SERVICES = [
    pytest.param(service, id=f"{file}: {name}")
    for file, text in (("demo", DEMO), ("hospital", HOSPITAL), ("peer", PEER))
    for name, service in text["services"].items()
]
HOSPITALS = ("cleveland", "hungary", "long-beach")


def names(config: ConsortiumFile) -> list[str]:
    """Return the demonstration's members as its file has them."""
    return [member.name for member in config.members]


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_is_confined(service: dict[str, Any]) -> None:
    assert service["user"] == "${FEDAPP_UID:-49999}:${FEDAPP_GID:-49999}"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert any(mount.startswith("/tmp:size=") for mount in service["tmpfs"])
    assert "network_mode" not in service or service["network_mode"] == "none"


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_is_limited(service: dict[str, Any]) -> None:
    assert {"mem_limit", "cpus", "pids_limit"} <= set(service)


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_that_stays_comes_back(service: dict[str, Any]) -> None:
    if service["restart"] == "no":
        return  # ends by itself
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"] == "10s"
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_is_mounted_for_writing_but_what_is_meant_to_be(service: dict[str, Any]) -> None:
    for mount in service.get("volumes", []):
        if not mount.endswith(":ro"):
            source, target = re.split(r":(?=/)", mount)
            named = not source.startswith((".", "/", "$"))
            assert named or target in ("/runs", "/keys"), mount


@pytest.mark.parametrize("site", HOSPITALS)
def test_a_hospital_reaches_the_coordinators_door_and_nothing_else(site: str) -> None:
    assert DEMO["services"][f"supernode-{site}"]["networks"] == [site]
    assert DEMO["services"][f"site-{site}"]["networks"] == ["peers"]
    on_it = [
        name for name, service in DEMO["services"].items() if site in service.get("networks", [])
    ]
    assert sorted(on_it) == ["coordinator", f"supernode-{site}"]


def test_the_control_api_is_on_the_inside_network_alone() -> None:
    inside = {n for n, s in DEMO["services"].items() if "inside" in s.get("networks", [])}
    assert inside == {"coordinator", "superlink", "superexec", "enrol", "flwr"}
    for name in inside - {"coordinator"}:
        assert DEMO["services"][name]["networks"] == ["inside"]
    assert all(network["internal"] for network in DEMO["networks"].values())
    assert not [name for name, service in DEMO["services"].items() if "ports" in service]


def test_the_gate_lets_the_fleet_api_through_and_nothing_else() -> None:
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    bare = re.sub(r"#.*", "", text)
    bare = re.sub(r"\b(if|limit_except)([^{]*)\{([^}]*)\}", r"\1\2 \3", bare)
    blocks = dict(re.findall(r"location (.+) \{([^}]*)\}", bare))
    through = {path for path, block in blocks.items() if "proxy_pass" in block}
    assert through == {"/v1/fleet/", "= /health"}
    assert blocks["/"].split() == ["return", "404;"]
    assert "proxy_ssl_verify on;" in bare
    assert 'if ($request_uri !~ "^/v1/fleet/[a-z-]+$")   return 404;' in blocks["/v1/fleet/"]
    assert re.findall(r"listen ([^;]*);", bare) == ["8443 ssl"]


@pytest.mark.parametrize(
    ("file", "supernode", "site"),
    [(DEMO, f"supernode-{s}", f"site-{s}") for s in HOSPITALS] + [(HOSPITAL, "supernode", "site")],
)
def test_the_supernode_has_no_data_and_the_site_has_no_key(
    file: dict[str, Any], supernode: str, site: str
) -> None:
    """What they share is the socket: the SuperNode runs code that comes from outside.

    That code may connect to the socket, and not listen in its place.
    """
    node, data = file["services"][supernode], file["services"][site]
    targets = {mount.rpartition(":/")[2].removesuffix(":ro") for mount in node["volumes"]}
    assert targets == {"etc/fedapp/join.toml", "etc/fedapp/authority.pem", "run/fedapp"}
    assert [mount for mount in data["volumes"] if ":/data:ro" in mount]
    assert "secrets" not in data
    assert len(node["secrets"]) == 1
    (shared,) = (mount for mount in data["volumes"] if mount.endswith(":/run/fedapp"))
    assert f"{shared}:ro" in node["volumes"]
    sources = [{mount.split(":/")[0] for mount in each["volumes"]} for each in (node, data)]
    assert sources[0] & sources[1] == {shared.removesuffix(":/run/fedapp")}


def test_the_site_of_a_real_hospital_has_no_network() -> None:
    assert HOSPITAL["services"]["site"]["network_mode"] == "none"
    assert HOSPITAL["services"]["keygen"]["network_mode"] == "none"
    with_records = {n for n, s in HOSPITAL["services"].items() if "/data:ro" in str(s["volumes"])}
    assert with_records == {"site", "check", "try"}
    online = {n for n in with_records if HOSPITAL["services"][n].get("network_mode") != "none"}
    assert online == {"check"}, "which looks at the way to the coordinator too"
    page = (KIT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"--rm (\w+) (dry-run|train-local) ", page) == [
        ("try", "dry-run"), ("try", "train-local"),
    ]  # fmt: skip
    assert HOSPITAL["services"]["try"]["network_mode"] == "none"
    assert not [name for name, service in HOSPITAL["services"].items() if "ports" in service]


def test_a_site_is_a_peer_only_with_the_overlay_that_says_so() -> None:
    """Which gives it a network that nobody else is on, one port, and its key as a secret."""
    service = SITE_PEER["services"]["site"]
    assert set(SITE_PEER["services"]) == {"site", "check"}
    assert "networks" not in HOSPITAL["services"]["check"], "1.29 takes none away"
    assert "networks" not in SITE_PEER, "compose 1.29 takes a site that has one in none"
    assert [name for name, each in HOSPITAL["services"].items() if "peers" in str(each)] == []
    assert service["ports"] == ["${FEDAPP_PEER_PORT:-9443}:9443"]
    assert service["command"][-2:] == ["--peer", "/etc/fedapp/site-peer.toml"]
    assert "--peer" not in HOSPITAL["services"]["site"]["command"]
    assert "\npeer" not in (KIT / "site.toml").read_text(encoding="utf-8")
    for each in SITE_PEER["services"].values():
        assert each["network_mode"] == "${FEDAPP_PEER_NETWORK:-fedapp-peers}"
        assert {mount["target"] for mount in each["volumes"]} == {
            f"/etc/fedapp/{name}" for name in (
                "site-peer.toml", "peers.toml", "settings.toml", "authority.pem", "certificate.pem",
            )
        }  # fmt: skip
        # In the short form a file that is missing becomes a folder.
        assert {(mount["type"], mount["read_only"]) for mount in each["volumes"]} == {
            ("bind", True)
        }
        assert [secret["source"] for secret in each["secrets"]] == ["peer-key"]


def test_keys_are_secrets_and_no_environment() -> None:
    for file in (DEMO, DEMO_PEERS, HOSPITAL, PEER, SITE_PEER):
        for service in file["services"].values():
            assert set(service.get("environment", {})) <= {"FLWR_HOME"}
            for secret in service.get("secrets", []):
                assert secret["target"].startswith("/etc/fedapp/secrets/")
                assert secret["source"] in file["secrets"]


def test_a_health_check_is_not_content_with_a_process() -> None:
    for file in (DEMO, HOSPITAL, PEER):
        for name, service in file["services"].items():
            if service["restart"] == "no":
                continue  # ends by itself
            asks = service["healthcheck"]["test"]
            kind = name.partition("-")[0]
            if kind == "coordinator":
                assert asks == ["CMD", "sh", "/etc/fedapp/gate.sh"]
                continue
            own = (
                ["client_app.service.health"]
                if kind == "site"
                else ["fedapp.provision.health", kind]
            )
            assert asks[asks.index("-m") + 1 :][: len(own)] == own


def test_the_demonstrations_members_are_those_of_its_consortium() -> None:
    config = read_consortium(ROOT / "deploy" / "consortium.toml")
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"/kits/([^/]+)/", text))) == sorted(names(config))
    setup = (ROOT / "deploy" / "setup.sh").read_text(encoding="utf-8")
    assert [name for name in names(config) if f'"{name}"' not in setup] == []
    assert config.coordinator.address == "coordinator:8443"


def test_the_demonstrations_peers_are_its_sites_on_the_network_that_leads_nowhere() -> None:
    config = read_consortium(ROOT / "deploy" / "consortium.toml")
    places = {f"site-{key}": name for key, name in zip(HOSPITALS, names(config), strict=True)}
    assert {member.address: member.name for member in config.members} == {
        f"{service}:9443": name for service, name in places.items()
    }
    assert set(DEMO_PEERS["services"]) == set(places)
    assert "networks" not in DEMO_PEERS
    for service, name in places.items():
        added = DEMO_PEERS["services"][service]
        assert set(added) == {"command", "volumes", "secrets"}
        assert added["command"] == SITE_PEER["services"]["site"]["command"]
        of_kit = SITE_PEER["services"]["site"]["volumes"]
        targets = {mount["target"] for mount in of_kit}
        assert {mount["target"] for mount in added["volumes"]} == targets
        assert {(mount["type"], mount["read_only"]) for mount in added["volumes"]} == {
            ("bind", True)
        }
        sources = [mount["source"] for mount in added["volumes"]]
        kits = {kit for source in sources for kit in re.findall(r"/kits/([^/]+)/", source)}
        assert kits == {name}
        (secret,) = added["secrets"]
        key = DEMO_PEERS["secrets"][secret["source"]]["file"]
        assert key == f"./deploy/demo/hospitals/{name}/secrets/peer.key"
    run = read_settings(ROOT / "deploy" / "lightyear.toml")
    assert run.p2p.minimum == 1, "of three sites two go on when one is gone"
    assert f"data.labels='{','.join(run.data.labels)}'" in (ROOT / "deploy" / "run.sh").read_text()


def test_the_images_run_as_an_account_that_is_not_root() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    final = text[text.index("AS runtime") :]
    assert re.findall(r"^USER (\S+)", final, re.MULTILINE) == ["49999:49999"]
    assert "AS site\n" in final
    assert "AS core\n" in final
    core = text[text.index("FROM build AS build-core") : text.index("FROM build AS build-site")]
    assert "core.txt" in text[: text.index("FROM build AS build-core")]
    assert "site" not in core.replace("# ---- the site", "")


def test_the_build_is_given_code_and_nothing_else() -> None:
    """Neither data, keys, run folders nor the environment get into an image by accident."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert lines[0] == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$",
        (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    names = {name for line in copied for name in line.split()} - {"wheelhous[e]"}
    assert names | {"wheelhouse"} == kept


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not here")
@pytest.mark.parametrize(
    "more",
    [[], ["deploy/compose.gpu.yml"], ["deploy/compose.peers.yml"], ["deploy/compose.public.yml"]],
)
def test_compose_takes_the_demonstration(more: list[str]) -> None:
    files = [f"--file={ROOT / name}" for name in ("docker-compose.yml", *more)]
    command = ["docker-compose", "--project-directory", str(ROOT), *files, "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not here")
@pytest.mark.parametrize(
    "more",
    [
        [], ["compose.gpu.yml"], ["compose.peers.yml"], ["compose.site-peer.yml"],
        ["compose.site-peer.yml", "compose.gpu.yml"],
    ],
)  # fmt: skip
def test_compose_takes_a_kit(more: list[str], tmp_path: Path) -> None:
    values = {"site": "St. Gallen", "core": "core:1", "image": "site:1", "port": "9443"}
    text = Template((KIT / "env").read_text(encoding="utf-8")).substitute(values)
    (tmp_path / ".env").write_text(text, encoding="utf-8")
    files = ["docker-compose.yml", *more]
    for name in files:
        shutil.copy2(KIT / name, tmp_path / name)
    command = ["docker-compose", *(f"--file={name}" for name in files), "--profile=setup", "config"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "St. Gallen" in done.stdout
    services = yaml.safe_load(done.stdout)["services"]
    ways = {name: services[name].get("network_mode") for name in ("site", "check", "try")}
    peers = "fedapp-peers" if "compose.site-peer.yml" in more else None
    assert ways == {"site": peers or "none", "check": peers, "try": "none"}
    with_gpu = {name for name, service in services.items() if "deploy" in service}
    assert with_gpu == ({"site", "check", "try"} if "compose.gpu.yml" in more else set())


@pytest.mark.parametrize(
    "name", ["base.sh", "gate.sh", "wheelhouse.sh", "images.sh", "setup.sh", "run.sh"]
)
def test_the_scripts_can_be_read_by_a_plain_shell(name: str) -> None:
    path = ROOT / "deploy" / name
    assert path.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", path], check=True)


def test_the_list_of_packages_is_the_same_each_time() -> None:
    command = [sys.executable, str(ROOT / "deploy" / "sbom.py")]
    one, two = (subprocess.run(command, capture_output=True, check=True).stdout for _ in "ab")
    assert one == two
    document = json.loads(one)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    named = {part["name"]: part for part in document["components"]}
    assert named["flwr"]["version"] == "1.42.0"
    assert named["flwr"]["purl"] == "pkg:pypi/flwr@1.42.0"


def test_each_hospital_gets_its_own_records_as_the_simulation_has_them(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy" / "demo_data.py"), str(tmp_path)]
    subprocess.run(
        command, check=True, capture_output=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    table = read_heart()
    assert table.sites is not None
    for site in set(table.sites):
        with (tmp_path / site / "records.csv").open(encoding="utf-8", newline="") as stream:
            rows = [(row["text"], row["label"], row["site"]) for row in csv.DictReader(stream)]
        assert rows == [
            (example.content, example.stratum, site)
            for example, own in zip(table.examples, table.sites, strict=True)
            if own == site
        ]
