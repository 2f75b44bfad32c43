"""The ClientApp, called as Flower calls it."""

import subprocess
import sys

import pytest
from flwr.app import Context, Message, Metadata, RecordDict

from client_app import hosting
from client_app.app import app
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, SiteDescription
from fedapp.wire import (
    MESSAGE_TYPES,
    content_to_descriptions,
    content_to_reply,
    describe_to_content,
    instruction_to_content,
)

SIMULATION = {"partition-id": 0, "num-partitions": 1}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "_SITES", {})
    rows = [f"{s} note {i},{'ill' if i % 2 else 'well'},{s}" for s in "ab" for i in range(20)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label,site", *rows]) + "\n")
    return RunConfig.from_flat(
        {
            "data.source": str(tmp_path / "d.csv"),
            "data.labels": "ill,well",
            "model.source": "embedded:tiny-encoder",
            "model.max-length": 16,
            "lora.rank": 2,
            "train.threads": 1,
        }
    )


def send(content, message_type, node_config=SIMULATION):
    metadata = Metadata(  # a message as it arrives: with an id and a sender
        run_id=1,
        message_id="m",
        src_node_id=1,
        dst_node_id=2,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=60.0,
        message_type=message_type,
    )
    context = Context(1, 2, dict(node_config), RecordDict(), {})
    return app(Message(metadata=metadata, content=content), context).content


def ask(action, config, payloads=None, node_config=SIMULATION, site="a", **kwargs):
    instruction = Instruction(action, site, config, 1, payloads=payloads or {}, **kwargs)
    content = instruction_to_content(instruction)
    return content_to_reply(send(content, MESSAGE_TYPES[action], node_config))


def test_importing_the_app_loads_no_torch():
    code = "import sys, client_app.app; sys.exit(bool({'torch', 'peft'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_describe_answers_for_every_hosted_site(config):
    replies = content_to_descriptions(send(describe_to_content(config), "query"))

    assert [SiteDescription(**reply.description).site for reply in replies] == ["a", "b"]


def test_describe_of_unreadable_data_is_one_failure(config):
    broken = config.with_changes({"data.source": "/nowhere.csv"})

    (reply,) = content_to_descriptions(send(describe_to_content(broken), "query"))

    assert reply.failure.kind == "DataError"
    assert "not found: nowhere.csv;" in reply.failure.message


def test_a_deployed_node_sends_no_labels_that_it_found(config):
    content = describe_to_content(config.with_changes({"data.labels": ""}))

    (reply,) = content_to_descriptions(send(content, "query", {"site": "a"}))

    assert reply.site == "a"
    assert reply.failure.kind == "ConfigError"
    assert "data.labels is empty" in reply.failure.message
    assert "well" not in reply.failure.message


def test_every_action_goes_through(config, tmp_path):
    progress = str(tmp_path / "p.jsonl")
    payloads = ask(Action.INITIAL, config).payloads

    trained = ask(Action.TRAIN, config, payloads, progress_file=progress)
    alone = ask(Action.LOCAL_ONLY, config, payloads)
    evaluated = ask(Action.EVALUATE, config, payloads)

    assert [r.failure for r in (trained, alone, evaluated)] == [None] * 3
    assert trained.payloads["adapter"].unpack().is_finite()
    assert list(trained.metrics) == ["received/validation", "personal/validation"]
    assert list(alone.metrics) == ["local-only/validation"]
    assert list(evaluated.metrics) == ["received/validation"]
    assert (tmp_path / "p.jsonl").read_text().count("\n") >= 1


def test_outside_a_simulation_the_coordinator_names_no_file(config, tmp_path):
    node = {"site": "a"}
    payloads = ask(Action.INITIAL, config, node_config=node).payloads

    reply = ask(Action.TRAIN, config, payloads, node, progress_file=str(tmp_path / "p.jsonl"))

    assert reply.failure is None
    assert not (tmp_path / "p.jsonl").exists()


def test_outside_a_simulation_a_site_keeps_its_state_where_its_operator_says(config, tmp_path):
    short = config.with_changes({"federation.codec": "int8"})
    payloads = ask(Action.INITIAL, config, node_config={"site": "a"}).payloads
    named = {"run": "0a" * 16, "state_folder": str(tmp_path / "coordinator")}

    refused = ask(Action.TRAIN, short, payloads, {"site": "a"}, **named)
    node = {"site": "a", "state-folder": str(tmp_path / "own")}
    deployed = ask(Action.TRAIN, short, payloads, node, **named)
    simulated = ask(Action.TRAIN, short, payloads, **named)

    assert refused.failure.kind == "ConfigError"
    assert "state-folder" in refused.failure.message
    assert [deployed.failure, simulated.failure] == [None, None]
    assert [path.name for path in (tmp_path / "own").rglob("*.safetensors")] == [
        "round-000001.safetensors"
    ]
    assert len([*(tmp_path / "coordinator").rglob("*.safetensors")]) == 1, "the simulation's"


def test_a_site_that_is_not_here_is_refused(config):
    reply = ask(Action.EVALUATE, config, site="z")

    assert reply.failure.kind == "HandshakeError"
    assert (
        reply.failure.message == "site z, round 1: this node does not host the site; it hosts a, b"
    )


def test_the_message_type_and_the_instruction_must_agree(config):
    content = instruction_to_content(Instruction(Action.TRAIN, "a", config))

    reply = content_to_reply(send(content, MESSAGE_TYPES[Action.EVALUATE]))

    assert reply.failure.kind == "HandshakeError"


def test_a_malformed_message_is_answered_with_a_failure():
    reply = content_to_reply(send(RecordDict(), "train"))

    assert reply.failure.kind == "WireError"
    assert reply.site == "node 0"


def test_an_unexpected_error_outside_a_site_tells_no_text(config, monkeypatch):
    def fail(_config):
        raise KeyError("patient Miller")

    monkeypatch.setattr(hosting, "load_usable_sites", fail)

    (reply,) = content_to_descriptions(send(describe_to_content(config), "query"))

    assert reply.failure.kind == "UnexpectedError"
    assert "Miller" not in reply.failure.message
