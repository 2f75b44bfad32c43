"""A SuperNode that would stay alive and offline ends instead."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable
from flwr.supernode import fleet_http_connection as fleet
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedapp.provision import supernode

STAYS = """
import sys, threading, time, types
def flower_supernode():
    print(sys.argv, flush=True)
    threading.Thread(target=time.sleep, args=(60,)).start()
    {end}
module = types.ModuleType("flower_supernode")
module.flower_supernode = flower_supernode
sys.modules["flwr.supernode.cli.flower_supernode"] = module
sys.argv = ["supernode.py", "flower-supernode", "--superlink", "x:1"]
import runpy
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("pass", "its loop has ended"),
        ("threading.Thread(target=lambda: 1 / 0, name='pulse').start(); time.sleep(60)",
         "its thread pulse has ended"),
    ],
)  # fmt: skip
def test_it_ends_though_its_other_threads_go_on(end: str, words: str) -> None:
    code = STAYS.format(end=end, path=str(Path(supernode.__file__)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert done.stdout == "['flower-supernode', '--superlink', 'x:1']\n"
    assert f"error: the SuperNode is offline: {words}" in done.stderr


def test_connections_outlast_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes its client by the name that is replaced, and says nothing of limits itself."""
    original = httpx.Client
    monkeypatch.setattr(httpx, "Client", original)
    supernode.keep_connections()
    assert issubclass(httpx.Client, original), "others may derive from it"
    client = FleetHttpClient.from_server_address("localhost:1", True, None, interceptors=[])

    pool: Any = client._client._transport._pool  # type: ignore[attr-defined]
    assert pool._keepalive_expiry == supernode.KEPT
    plain: Any = original()._transport
    for most in ("_max_connections", "_max_keepalive_connections"):
        assert getattr(pool, most) == getattr(plain._pool, most), "as many as ever"
    gate = Path(__file__).parents[4] / "deploy" / "nginx.conf"
    closed = re.search(r"keepalive_timeout (\d+)s;", gate.read_text(encoding="utf-8"))
    assert closed
    assert float(closed[1]) > supernode.KEPT


def test_an_object_that_is_there_already_costs_no_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The SuperLink says no to an object that it got, and whose answer was lost."""
    monkeypatch.setattr(fleet, "make_push_object_fn_protobuf", make_push_object_fn_protobuf)
    supernode.go_on_pushing()
    got = []

    def push_object(request: PushObjectRequest) -> PushObjectResponse:
        got.append(request.object_id)
        return PushObjectResponse(stored=request.object_id != "b")

    push = fleet.make_push_object_fn_protobuf(push_object, Node(node_id=1), 7, "session")  # type: ignore[attr-defined]
    push_object_contents_from_iterable([("a", b"1"), ("b", b"2"), ("c", b"3")], push)

    assert sorted(got) == ["a", "b", "c"]
    assert "object b is not waited for" in capsys.readouterr().out
    assert inspect.getsource(fleet).count("make_push_object_fn_protobuf(") == 1, "looked up late"


def test_a_thread_that_asks_to_end_is_no_fault() -> None:
    end = "t = threading.Thread(target=sys.exit); t.start(); t.join(); import os; os._exit(7)"
    code = STAYS.format(end=end, path=str(Path(supernode.__file__)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)

    assert done.returncode == 7
