"""The service's calls: the same bits, one at a time, and what a bad caller gets."""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from site_desk import CONFIG, NAME, Service, chunk, echo, instruction, start, write_site
from site_gate import gated, in_thread, one_runs_and_one_waits, wait_until

from client_app.service.calls import CANCEL, DESCRIBE, EXECUTE, HEALTH
from client_app.service.health import main as health_of
from client_app.service.proto import site_pb2
from client_app.service.remote import RemoteSite
from fedapp.codec import pack
from fedapp.exchange import Action
from fedapp.headers import write_instruction
from fedapp.opening_hours import DAYS

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def execute(service, *messages, timeout=10.0):
    """Send raw messages; return the code and sentence with which the call ends."""
    with service.channel() as channel:
        call = channel.stream_stream(EXECUTE)(iter(messages), timeout=timeout)
        try:
            list(call)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def test_payloads_come_back_bit_for_bit(service):
    asked = instruction()

    reply = RemoteSite(service.address).execute(asked)

    assert reply.failure is None
    sent, got = asked.payloads["adapter"], reply.payloads["adapter"]
    assert got.layout == sent.layout
    assert np.array_equal(got.array, sent.array)
    assert (reply.site, reply.round, reply.action) == (NAME, 1, Action.TRAIN)


def test_a_payload_of_many_chunks(service, monkeypatch):
    monkeypatch.setattr("client_app.service.payloads.CHUNK", 7)

    reply = RemoteSite(service.address).execute(instruction())

    assert reply.payloads["adapter"].unpack().is_finite()


def test_the_same_message_twice_at_a_time_is_worked_on_once(tmp_path):
    gate, running = gated(tmp_path)
    with running as service:
        first = in_thread(RemoteSite(service.address).execute, instruction())
        assert gate.began.wait(10)
        second = in_thread(RemoteSite(service.address).execute, instruction())
        wait_until(lambda: service.desk.tasks[0].listeners == 2)
        gate.open.set()

        assert first().failure is None
        assert second().failure is None
    assert len(gate.calls) == 1


def test_one_is_worked_on_one_waits_and_the_third_is_sent_away(tmp_path):
    gate, running = gated(tmp_path)
    with running as service:
        replies = one_runs_and_one_waits(service, gate, [instruction(round=n) for n in (1, 2)])

        third = RemoteSite(service.address, patience=0.2).execute(instruction(round=3))
        gate.open.set()

        assert third.failure.kind == "SiteUnavailable"
        assert "has another waiting" in third.failure.message
        assert [reply().failure for reply in replies] == [None, None]
    assert [asked.round for asked in gate.calls] == [1, 2]


def test_what_nobody_waits_for_gives_way_to_the_next_round(tmp_path):
    gate, running = gated(tmp_path)
    with running as service:
        with service.channel() as channel:  # a ClientApp that is killed
            header = write_instruction(instruction(round=1, payloads={}))
            call = channel.stream_stream(EXECUTE)(iter([start(header, {})]))
            assert gate.began.wait(10)
            call.cancel()
        wait_until(lambda: service.desk.tasks[0].listeners == 0)
        orphan = service.desk.tasks[0]

        reply = in_thread(RemoteSite(service.address).execute, instruction(round=2))
        wait_until(lambda: len(gate.calls) == 2)
        gate.open.set()

        assert orphan.cancelled.is_set()
        assert reply().failure is None


def test_a_killed_caller_finds_its_work_again(tmp_path):
    gate, running = gated(tmp_path)
    with running as service:
        with service.channel() as channel:
            asked = instruction(payloads={})
            first = start(write_instruction(asked), {})
            call = channel.stream_stream(EXECUTE)(iter([first]))
            assert gate.began.wait(10)
            call.cancel()
        wait_until(lambda: service.desk.tasks[0].listeners == 0)
        reply = in_thread(RemoteSite(service.address).execute, asked)
        wait_until(lambda: service.desk.tasks[0].listeners == 1)
        gate.open.set()

        assert reply().failure is None
    assert len(gate.calls) == 1


def test_progress_is_told_while_a_task_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("client_app.service.remote._TELL", 0.0)
    gate, running = gated(tmp_path)
    with running as service:
        told, later = [], []
        first = in_thread(RemoteSite(service.address, tell=told.append).execute, instruction())
        wait_until(lambda: len(told) >= 3)
        second = in_thread(RemoteSite(service.address, tell=later.append).execute, instruction())
        wait_until(lambda: later)
        gate.open.set()

        assert first().failure is second().failure is None
    assert all(re.fullmatch(r"step \d+ of 2000", line) for line in (*told, *later))
    steps = [int(line.split()[1]) for line in told]
    assert steps == sorted(set(steps))


def test_a_task_without_progress_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr("client_app.service.server._SIGN_OF_LIFE", 0.1)
    go = threading.Event()

    def slow(task):
        assert go.wait(20)
        return echo(task)

    with Service(write_site(tmp_path), slow) as service, service.channel() as channel:
        first = start(write_instruction(instruction(payloads={})), {})
        events = channel.stream_stream(EXECUTE)(iter([first]), timeout=20)
        parts = []
        for event in map(site_pb2.Event.FromString, events):
            parts.append(event.WhichOneof("part"))
            if parts.count("progress") == 3:
                go.set()

    assert parts[0] == "accepted"
    assert parts[-1] == "answer"


def test_health_says_what_is_done(tmp_path):
    gate, running = gated(tmp_path)
    with running as service, service.channel() as channel:

        def health():
            return site_pb2.HealthReply.FromString(channel.unary_unary(HEALTH)(b"", timeout=5))

        idle = health()
        reply = in_thread(RemoteSite(service.address).execute, instruction())
        assert gate.began.wait(10)
        busy = health()
        gate.open.set()
        reply()

    assert (idle.site, idle.ready, idle.tasks, idle.silent) == (NAME, True, 0, -1.0)
    assert (busy.tasks, busy.silent >= 0) == (1, True)
    assert busy.doing.startswith("train of round 1, step ")


def test_a_container_can_tell_alive_but_offline_apart(service, capsys):
    path = str(service.config.socket)

    assert health_of([path, "60"]) == 0
    assert health_of([path, "0"]) == 3
    assert "never" in capsys.readouterr().out
    RemoteSite(service.address).execute(instruction())
    assert health_of([path, "60"]) == 0
    assert "idle; called 0 s ago\n" in capsys.readouterr().out
    assert health_of([f"{path}.no"]) == 1


@pytest.mark.parametrize(("failed", "code"), [(False, 0), (True, 4)])
def test_a_container_is_told_of_the_peer_that_the_service_is_as_well(
    tmp_path, capsys, failed, code
):
    peer = SimpleNamespace(doing="failed, the port is taken", failed=failed)
    with Service(write_site(tmp_path), peer=peer) as service:
        assert health_of([str(service.config.socket)]) == code

    told = capsys.readouterr().out
    assert told.endswith("or never; peer failed, the port is taken\n")
    assert ": nothing to do for a coordinator; called" in told


def test_more_than_the_limit_is_refused_before_it_is_sent(tmp_path):
    path = write_site(tmp_path)
    path.write_text(path.read_text() + "[limits]\nmax-payload-mb = 0.0001\n")
    with Service(path) as service:
        reply = RemoteSite(service.address).execute(instruction())

    assert reply.failure.kind == "WireError"
    assert "bytes are announced, at most 100 are taken" in reply.failure.message


def test_announcing_a_terabyte_takes_no_memory(service):
    header = write_instruction(instruction())

    code, details = execute(service, start(header, {"adapter": 2**40}))

    assert code is INVALID
    assert "1099511627776 bytes are announced" in details


def test_a_size_that_contradicts_the_layout_is_refused(service):
    asked = instruction()
    size = asked.payloads["adapter"].nbytes

    code, details = execute(service, start(write_instruction(asked), {"adapter": size + 1}))

    assert code is INVALID
    assert f"announced with {size + 1} bytes, and its layout has {size}" in details


def test_an_end_before_the_end_is_refused_and_leaves_no_task(service):
    asked = instruction()
    size = asked.payloads["adapter"].nbytes
    first = start(write_instruction(asked), {"adapter": size})

    assert execute(service, first)[0] is INVALID
    assert execute(service, first, chunk(b"x" * (size + 1)))[0] is INVALID
    assert execute(service, first, first)[0] is INVALID
    assert execute(service, chunk(b"x"))[0] is INVALID
    wait_until(lambda: service.desk.tasks == [])


def test_a_caller_that_says_nothing_is_cut_off(tmp_path):
    path = write_site(tmp_path)
    path.write_text(path.read_text() + "[limits]\nstart-timeout = 0.2\nchunk-timeout = 0.2\n")
    with Service(path) as service, service.channel() as channel:
        asked = instruction()
        first = start(write_instruction(asked), {"adapter": asked.payloads["adapter"].nbytes})
        for begin in ([], [first]):
            silence = threading.Event()

            def messages(begin=begin, silence=silence):
                yield from begin
                silence.wait(20)

            with pytest.raises(grpc.RpcError) as caught:
                list(channel.stream_stream(EXECUTE)(messages(), timeout=10))
            silence.set()
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "nothing for 0.2 s" in caught.value.details()
        wait_until(lambda: service.desk.tasks == [])


def test_another_version_of_the_protocol_is_named(service):
    code, details = execute(service, start("{}", {}, version=7))

    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "the call has 7" in details


def test_hostile_bytes_do_not_end_the_service(service):
    rng, codes = random.Random(0), set()
    header = write_instruction(instruction(payloads={}))
    with service.channel() as channel:
        for method in (DESCRIBE, CANCEL, HEALTH):
            for _ in range(10):
                call = channel.unary_stream(method)(rng.randbytes(rng.randrange(200)), timeout=5)
                try:
                    list(call)
                except grpc.RpcError as error:
                    codes.add(error.code())
    assert codes <= {INVALID, grpc.StatusCode.FAILED_PRECONDITION}
    for _ in range(20):
        at = rng.randrange(len(header))
        code, _ = execute(service, start(header[:at] + rng.choice('{}",\x00é') + header[at:], {}))
        assert code in (INVALID, grpc.StatusCode.OK)
        assert execute(service, rng.randbytes(rng.randrange(300)))[0] is INVALID
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(service.config.socket))
            raw.sendall(rng.randbytes(1000))

    assert RemoteSite(service.address).execute(instruction()).failure is None


def test_a_message_that_is_too_long_is_refused(service):
    code, _ = execute(service, start("x" * (5 * 2**20), {}))

    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_instruction_for_another_site_is_refused(service):
    reply = RemoteSite(service.address).execute(replace(instruction(), site="Basel"))

    assert reply.site == "Basel"
    assert "this is site Bern" in reply.failure.message
    assert service.events()[0]["event"] == "refused"


SIMULATED = [
    instruction(Action.PUBLISH),
    instruction(Action.MIX),
    instruction(
        config=CONFIG.with_changes({"faults.sites": "Basel", "faults.attack": "sign-flip"})
    ),
]


@pytest.mark.parametrize("asked", SIMULATED, ids=["publish", "mix", "faults"])
def test_what_belongs_to_a_simulation_is_refused(tmp_path, asked):
    gate, running = gated(tmp_path)
    with running as service:
        reply = RemoteSite(service.address).execute(asked)
        events = service.events()

    assert reply.failure.kind == "ConfigError"
    assert events[0]["event"] == "refused"
    assert gate.calls == []


REFUSED = {
    'methods = "dysco"': "methods",
    'algorithms = "fedprox"': "algorithms",
    'base-models = ["embedded:minilm"]': "base-models",
    "max-rank = 1": "max-rank",
    "max-rounds = 3": "max-rounds",
    'app-versions = ["0.0.1"]': "app-versions",
    'coordinators = ["university"]': "coordinators",
    f'hours = ["{DAYS[(datetime.now().weekday() + 3) % 7]} 00:00-24:00"]': "hours",
}


@pytest.mark.parametrize("policy", REFUSED)
def test_what_the_policy_forbids_is_refused_by_its_name_and_written_down(tmp_path, policy):
    with Service(write_site(tmp_path, policy + "\n")) as service:
        remote = RemoteSite(service.address, coordinator="somebody else")
        described = remote.describe(CONFIG, "node")
        reply = remote.execute(instruction())
        events = service.events()

    for each in (described, reply):
        assert each.site == NAME
        assert (each.failure.kind, each.failure.reason) == ("PolicyRefused", REFUSED[policy])
        assert f"rule '{REFUSED[policy]}'" in each.failure.message
    assert [(e["event"], e["rule"]) for e in events] == [("refused", REFUSED[policy])] * 2
    assert events[0]["coordinator"] == "somebody else"


def test_a_deadline_is_kept(tmp_path):
    gate, running = gated(tmp_path)
    with running as service:
        short = CONFIG.with_changes({"federation.round-timeout": 0.5})
        reply = RemoteSite(service.address).execute(instruction(config=short))
        gate.open.set()

    assert reply.failure.kind == "SiteUnavailable"
    assert "did not answer within 0.5 s; it works on" in reply.failure.message


CLIENT = """
import gc, sys
from flwr.app import Context, Message, Metadata, RecordDict
from client_app.app import app
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction
from fedapp.wire import content_to_reply, instruction_to_content

asked = Instruction(Action.TRAIN, "Bern", RunConfig.from_json(sys.argv[2]), 1)
metadata = Metadata(run_id=1, message_id="m", src_node_id=1, dst_node_id=2, reply_to_message_id="",
    group_id="", created_at=0.0, ttl=60.0, message_type="train")
node = {"site": "Bern", "site-address": sys.argv[1]}
message = Message(metadata=metadata, content=instruction_to_content(asked))
reply = content_to_reply(app(message, Context(1, 2, node, RecordDict(), {})).content)
assert reply.failure is None, reply.failure
heavy = {"torch", "transformers", "peft", "datasets", "pandas", "client_app.data",
    "client_app.site", "client_app.hosting", "client_app.service.work"} & set(sys.modules)
assert gc.get_freeze_count() > 10_000, "looks through its modules for garbage as it ends"
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""


def test_the_client_app_of_a_site_with_a_service_loads_no_torch_and_no_data(service):
    command = [sys.executable, "-c", CLIENT, service.address, CONFIG.to_json()]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr


def test_the_payload_of_an_instruction_is_really_sent(service):
    other = instruction(payloads={"adapter": pack(instruction().payloads["adapter"].unpack())})

    assert np.array_equal(
        RemoteSite(service.address).execute(other).payloads["adapter"].array,
        other.payloads["adapter"].array,
    )
