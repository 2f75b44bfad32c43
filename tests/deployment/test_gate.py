"""The gate with a real nginx: what gets through to the SuperLink, and what never does.

Needs `nginx` and `busybox` on the PATH, which `make compose-test` installs beside the engine; no
container.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interface import ROOT
from peers import free_port
from provisioning import Coordinator

pytestmark = pytest.mark.docker


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Says which path came, and how many bytes; fails as the real one does when it is busy."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self.rfile.read(length)
        self.seen.append(self.path)
        body = f"{self.path} {length}".encode()
        self.send_response(500 if self.path.endswith("busy") else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


class Gate:
    """nginx with deploy/nginx.conf, but for its places, in front of a stand-in."""

    def __init__(self, root: Path) -> None:
        coordinator = Coordinator(root, ["Basel"])
        coordinator.provision()
        self.folder, self.port = coordinator.folder, free_port()
        handler = type("Handler", (SuperLink,), {"seen": []})
        self.seen: list[str] = handler.seen
        self.behind = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder.superlink, self.folder.superlink_key)
        self.behind.socket = context.wrap_socket(self.behind.socket, server_side=True)
        threading.Thread(target=self.behind.serve_forever, daemon=True).start()
        text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
        port = self.behind.server_address[1]
        for old, new in {
            " /tmp/": f" {root}/",  # first: what is put in may be below /tmp as well
            "/etc/fedapp/": f"{self.folder.path}/",
            "listen 8443": f"listen 127.0.0.1:{self.port}",
            "https://superlink:8000": f"https://127.0.0.1:{port}",
        }.items():
            assert old in text
            text = text.replace(old, new)
        if os.geteuid() == 0:  # else its worker becomes somebody who may not read the test's folder
            text = "user root;\n" + text
        (root / "nginx.conf").write_text(text, encoding="utf-8")
        nginx = shutil.which("nginx")
        assert nginx is not None, "this test needs nginx: apt-get install nginx-light"
        self.process = subprocess.Popen(
            [nginx, "-e", "stderr", "-c", str(root / "nginx.conf"), "-g", "daemon off;"]
        )
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                self.ask("/")
                return
            except ConnectionError:
                assert self.process.poll() is None, "nginx has ended"
                time.sleep(0.1)
        raise AssertionError("nginx does not answer")

    def ask(self, path: str, method: str = "POST", body: bytes = b"x") -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self.folder.authority))
        call = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=20)
        try:
            call.putrequest(method, path, skip_accept_encoding=True)
            call.putheader("content-length", str(len(body)))
            call.endheaders()
            call.send(body)
            answer = call.getresponse()
            return answer.status, answer.read()
        finally:
            call.close()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.behind.shutdown()
        self.behind.server_close()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    one = Gate(tmp_path_factory.mktemp("gate"))
    yield one
    one.close()


def test_a_call_of_a_supernode_goes_through_whole(gate: Gate) -> None:
    assert gate.ask("/v1/fleet/pull-messages") == (200, b"/v1/fleet/pull-messages 1")
    chunk = b"a" * 5_300_000  # of an array, as Flower cuts it
    assert gate.ask("/v1/fleet/push-object", body=chunk) == (200, b"/v1/fleet/push-object 5300000")


@pytest.mark.parametrize("shell", ["sh", "busybox"])
def test_its_health_check_takes_the_refusal_for_an_answer(gate: Gate, shell: str) -> None:
    """With what is in the image of deploy/base.sh, and with what is in nginx:alpine."""
    before = len(gate.seen)

    assert health(shell, gate.port) == (0, "the gate answers\n")
    assert len(gate.seen) == before, "nobody behind it was asked"
    closed = free_port()
    assert health(shell, closed) == (1, f"the gate does not answer on port {closed}\n")
    with socket.create_server(("127.0.0.1", 0)) as hung:  # takes calls, and that is all
        port = hung.getsockname()[1]
        assert health(shell, port) == (1, f"the gate does not answer on port {port}\n")


@pytest.mark.parametrize("shell", ["sh", "busybox"])
def test_its_health_check_is_not_content_with_another_answer(shell: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            call, _ = other.accept()
            with call:
                call.recv(1024)
                call.sendall(b"HTTP/1.1 4000 Nobody\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        assert health(shell, port) == (1, f"the gate does not answer on port {port}\n")
        answering.join(5)


@pytest.mark.parametrize("shell", ["sh", "busybox"])
def test_its_health_check_waits_for_no_connection_for_long(shell: str) -> None:
    with contextlib.ExitStack() as calls:
        full = calls.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for _ in range(4):  # more than wait there: what comes now is not even told no
            call = calls.enter_context(socket.socket())
            call.setblocking(False)
            call.connect_ex(("127.0.0.1", port))
        began = time.monotonic()
        assert health(shell, port) == (1, f"the gate does not answer on port {port}\n")
        assert time.monotonic() - began > 4, "it was refused, and had nothing to wait for"


def health(shell: str, port: int) -> tuple[int, str]:
    """Run the check of the gate's container; return exit code and sentence."""
    found = shutil.which(shell)
    assert found is not None, f"this test needs {shell}: apt-get install {shell}-static"
    command, path = [found], os.environ["PATH"]
    if shell == "busybox":  # nothing but itself
        command, path = [found, "sh"], "/nowhere"
    command += [str(ROOT / "deploy" / "gate.sh"), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=9, env={"PATH": path})
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "path",
    [
        "/", "/docs", "/health/", "/health?x", "//health", "/openapi.json", "/v1/control/start-run",
        "/v1/runtime/acquire-task", "/v1/fleet/", "/V1/fleet/x", "//v1/fleet/x", "/v1//fleet/x",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run", "/v1/control/start-run/%2e%2e/%2e%2e/fleet/x",
        "/v1/fleet/x?y=1", "/v1/fleet/x%0d%0aHost:a", "/v1/fleet/x;y", "/v1/fleet/a/b",
    ],
)  # fmt: skip
def test_nothing_else_does_however_it_is_written(gate: Gate, path: str) -> None:
    before = len(gate.seen)
    assert gate.ask(path)[0] in (403, 404)
    assert gate.ask(path, "GET", b"")[0] in (403, 404)
    assert len(gate.seen) == before


def test_whether_it_is_there_may_be_asked(gate: Gate) -> None:
    assert gate.ask("/health", "GET", b"") == (200, b"/health 0")
    assert gate.ask("/health")[0] == 403


def test_reading_is_no_call_of_a_supernode(gate: Gate) -> None:
    before = len(gate.seen)
    assert gate.ask("/v1/fleet/pull-messages", "GET", b"")[0] == 403
    assert len(gate.seen) == before


def test_a_busy_superlink_is_one_to_ask_again(gate: Gate) -> None:
    """A SuperNode gives up at 500 and stays alive, offline; at 502 it tries again."""
    assert gate.ask("/v1/fleet/busy")[0] == 502


def test_a_plain_call_is_refused(gate: Gate) -> None:
    call = http.client.HTTPConnection("localhost", gate.port, timeout=20)
    before = len(gate.seen)
    call.request("POST", "/v1/fleet/pull-messages", b"x")
    assert call.getresponse().status == 400
    assert len(gate.seen) == before


def test_a_superlink_that_is_away_is_one_to_ask_again(gate: Gate) -> None:
    gate.behind.shutdown()
    gate.behind.server_close()
    assert gate.ask("/v1/fleet/pull-messages")[0] == 502
