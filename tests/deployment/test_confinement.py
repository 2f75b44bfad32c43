"""What containers may do and reach, tried from inside them; the files only say what they should."""

from __future__ import annotations

import json

import pytest
from engine import docker, inspect
from stack import CORE, HOSPITALS, SITE, STAYING, Stack

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
PYTHON = [name for name in STAYING if name != "coordinator"]
SUPERNODES = [f"supernode-{name}" for name in HOSPITALS]

PROBE = """
import json, socket, sys, threading
found = {}
def probe(target):
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
        found[target] = "reached"
    except socket.gaierror:
        found[target] = "unknown name"
    except OSError:
        found[target] = "no way"
threads = [threading.Thread(target=probe, args=[target]) for target in sys.argv[1:]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(found))
"""
CALL = """
import http.client, ssl, sys
context = ssl.create_default_context(cafile="/etc/fedapp/authority.pem")
call = http.client.HTTPSConnection("coordinator", 8443, context=context, timeout=10)
call.request(sys.argv[1], sys.argv[2], b"")
print(call.getresponse().status)
"""


@pytest.mark.parametrize("service", STAYING)
def test_a_container_has_no_right_but_to_do_its_work(stack: Stack, service: str) -> None:
    said = stack.exec(service, "cat", "/proc/1/status").stdout
    status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert set(status["Uid"].split()) == {stack.uid}
    assert set(status["Gid"].split()) == {stack.gid}
    assert stack.uid != "0"


@pytest.mark.parametrize("service", STAYING)
def test_nothing_of_an_image_can_be_changed(stack: Stack, service: str) -> None:
    for place in ("/", "/etc", "/etc/fedapp", "/usr/bin"):
        done = stack.exec(service, "touch", f"{place}/x", check=False)
        assert done.returncode != 0
        assert "Read-only file system" in done.stderr or "Permission denied" in done.stderr
    root = stack.exec(service, "touch", "/etc/x", user="0:0", check=False)
    assert "Read-only file system" in root.stderr, "not even by root"


@pytest.mark.parametrize("service", STAYING)
def test_nobody_in_a_container_is_root_or_an_account_of_the_host(
    stack: Stack, service: str
) -> None:
    said = docker("top", stack.container(service), "-eo", "pid,uid,comm").stdout
    rows = [line.split() for line in said.splitlines()[1:]]
    assert rows
    assert {uid for _, uid, *_ in rows} == {stack.uid}


@pytest.mark.parametrize("service", STAYING)
def test_a_container_is_limited(stack: Stack, service: str) -> None:
    host = inspect(stack.container(service))["HostConfig"]
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["PidsLimit"] > 0
    assert not host["Privileged"]
    assert not host["PortBindings"]


@pytest.mark.parametrize("service", SUPERNODES)
def test_a_supernode_cannot_read_the_records(stack: Stack, service: str) -> None:
    """It runs code that comes from outside: what it can open is all that the code can open."""
    for path in ("/data/records.csv", "/data", "/state", "/state/site/audit.jsonl"):
        done = stack.exec(service, "cat", path, check=False)
        assert done.returncode != 0
    find = ["find", "/", "-xdev", "-name", "records.csv"]
    assert stack.exec(service, *find, check=False).stdout == ""
    mounts = {mount["Destination"] for mount in inspect(stack.container(service))["Mounts"]}
    assert mounts == {
        "/etc/fedapp/join.toml", "/etc/fedapp/authority.pem", "/run/fedapp",
        "/etc/fedapp/secrets/supernode.key",
    }  # fmt: skip


def test_a_supernode_cannot_put_another_socket_in_the_place_of_its_sites(stack: Stack) -> None:
    done = stack.exec("supernode-hungary", "rm", "/run/fedapp/site/site.sock", check=False)
    assert "Read-only file system" in done.stderr
    assert stack.exec("site-hungary", "ls", "/run/fedapp/site").stdout.split() == ["site.sock"]


def test_a_site_reads_its_own_records_and_cannot_change_them(stack: Stack) -> None:
    assert stack.exec("site-hungary", "head", "-1", "/data/records.csv").stdout
    done = stack.exec("site-hungary", "sh", "-c", "echo x >> /data/records.csv", check=False)
    assert "Read-only file system" in done.stderr
    assert stack.exec("site-hungary", "ls", "/data").stdout.split() == ["records.csv"]


def test_a_site_has_no_key_and_no_way_out(stack: Stack) -> None:
    assert stack.exec("site-hungary", "ls", "/etc/fedapp/secrets", check=False).returncode != 0
    gate = f"{stack.address('coordinator', 'hungary')}:8443"
    assert reach(stack, "site-hungary", "coordinator:8443", "superlink:8000", gate) == {
        "coordinator:8443": "unknown name", "superlink:8000": "unknown name", gate: "no way",
    }  # fmt: skip


def test_the_gate_lets_the_fleet_api_through_and_nothing_else(stack: Stack) -> None:
    def status(method: str, path: str) -> str:
        return stack.exec("supernode-hungary", "python", "-c", CALL, method, path).stdout.strip()

    assert status("GET", "/health") == "200"
    assert status("POST", "/v1/fleet/pull-messages") not in ("403", "404")
    for path in ("start-run", "list-runs", "register-node", "list-nodes", "stop-run"):
        assert status("POST", f"/v1/control/{path}") == "404"
    assert status("POST", "/v1/runtime/acquire-task") == "404"
    assert status("POST", "/v1/fleet/../control/start-run") == "404"
    assert status("GET", "/docs") == "404"


@pytest.mark.parametrize("service", SUPERNODES)
def test_a_hospital_reaches_the_gate_and_nothing_else(stack: Stack, service: str) -> None:
    """Neither by name nor by address: the control API is on another network."""
    others = [name for name in HOSPITALS if f"supernode-{name}" != service]
    names = [f"{name}:8000" for name in ("superlink", "superexec")]
    names += [f"supernode-{name}:9094" for name in others]
    places = [f"{stack.address('superlink', 'inside')}:8000", "1.1.1.1:443"]
    places += [f"{stack.address(f'supernode-{name}', name)}:9094" for name in others]
    places += [f"{stack.address('coordinator', name)}:8443" for name in others]
    assert reach(stack, service, "coordinator:8443", *names, *places) == {
        "coordinator:8443": "reached",
        **dict.fromkeys(names, "unknown name"),
        **dict.fromkeys(places, "no way"),
    }


def test_from_inside_the_superlink_can_be_reached(stack: Stack) -> None:
    """So that what does not reach it above is not a mistake of the test."""
    place = f"{stack.address('superlink', 'inside')}:8000"
    assert reach(stack, "superexec", "superlink:8000", place) == {
        "superlink:8000": "reached", place: "reached",
    }  # fmt: skip


def test_keys_are_files_and_no_environment(stack: Stack) -> None:
    for service in STAYING:
        found = inspect(stack.container(service))
        environment = " ".join(found["Config"]["Env"] or [])
        assert "PRIVATE KEY" not in environment + " ".join(found["Config"]["Cmd"] or [])
        assert "secret" not in environment.lower()


@pytest.mark.parametrize(("image", "torch"), [(CORE, False), (SITE, True)])
def test_an_image_lists_what_is_in_it(stack: Stack, image: str, torch: bool) -> None:
    done = docker("run", "--rm", "--entrypoint", "cat", image, "/opt/fedapp/sbom.json")
    document = json.loads(done.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    kinds = {part["purl"].split("/")[0] for part in document["components"]}
    named = {part["name"]: part["version"] for part in document["components"]}
    assert "pkg:pypi" in kinds
    assert named["flwr"] == "1.42.0"
    assert ("torch" in named) is torch
    assert "pip" not in named


def test_the_image_without_torch_is_small() -> None:
    size = json.loads(docker("image", "inspect", CORE).stdout)[0]["Size"]
    assert size < 600e6


def test_an_image_runs_as_no_root_of_itself(images: None) -> None:
    for image in (CORE, SITE):
        assert docker("run", "--rm", "--entrypoint", "id", image, "-u").stdout.strip() == "49999"


def reach(stack: Stack, service: str, *targets: str) -> dict[str, str]:
    """Try to open connections from a container, all at the same time; each HOST:PORT."""
    said = stack.exec(service, "python", "-c", PROBE, *targets)
    found: dict[str, str] = json.loads(said.stdout)
    return found
