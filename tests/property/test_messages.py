"""Mutated messages through what a coordinator or a site runs on everything that it receives.

Whatever comes, it ends in a refusal with a name, or in an update that an independent reader of the
same bytes finds valid; nothing crashes and nothing large is allocated.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import random
import re
import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_federation import FakeSite
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from hostile_messages import (
    CONFIG,
    MODEL,
    RECORDS,
    ROUND,
    SITE,
    SITES,
    Sender,
    description_sender,
    honest_descriptions,
    honest_instruction,
    instruction_sender,
    query_sender,
    reply_sender,
)
from mutations import mutate_bytes

from client_app import hosting
from client_app.app import app
from client_app.data import SiteData
from client_app.parameters import AdapterParameters, LivePair
from client_app.site import LocalSite
from fedapp import errors
from fedapp.codec import CODECS
from fedapp.errors import FedappError, UpdateRefused
from fedapp.exchange import Action, Reply
from fedapp.validation import REASONS
from fedapp.wire import MESSAGE_TYPES, payload_bytes
from server_app import handshake
from server_app.app import build_strategy
from server_app.collect import Problem, read_reply
from server_app.descriptions import NodeAnswer
from server_app.training_round import validate

NODE = 11
FAKE_DESCRIPTION = SimpleNamespace(model_dump=lambda: {"site": SITE})
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
MEBIBYTE = 2**20


def check_sentence(text: str) -> None:
    """A refusal is one line of bounded length that a terminal shows as it is."""
    assert text
    assert text.isprintable(), text
    assert len(text) < 2500


# ---- a coordinator that waits for an update ----------------------------------------------------


class Coordinator:
    """Receives updates of one site in one round."""

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._strategy = build_strategy(CONFIG.with_changes({"federation.codec": codec}))
        self._strategy.adapter = MODEL
        self._asked = honest_instruction()

    def receive(self, content: RecordDict) -> str:
        """Return ``accepted`` or the name of the refusal."""
        message = SimpleNamespace(
            content=content, has_error=lambda: False, metadata=SimpleNamespace(src_node_id=NODE)
        )
        assert payload_bytes(content) >= 0
        result = read_reply(message, self._asked, {SITE: NODE})
        if isinstance(result, Problem):
            check_sentence(result.reason)
            assert result.kind in {*REASONS, "malformed", "failure"}, result
            return result.kind
        try:
            update = validate(self._strategy, ROUND, result, RECORDS)
        except UpdateRefused as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            check_sentence(str(refused))
            assert refused.reason in REASONS
            assert (refused.site, refused.round) == (SITE, ROUND)
            return refused.reason
        check_update_independently(content, self._codec)
        check_reported_independently(result)
        arrays = read_arrays(content)
        if self._codec != "fp32":  # an increment on what the site received
            arrays = {name: base + arrays[name] for name, base in MODEL.arrays()}
        check_numbers_independently(arrays)
        assert update.weight == result.weight
        assert same_arrays(update.adapter, arrays)
        return "accepted"


def read_arrays(content: RecordDict) -> dict[str, Any]:
    """Decode an update with nothing of the product: positions, formats and all."""
    layout = json.loads(json.loads(content["header"]["json"])["layouts"]["adapter"])
    data = content["payload.adapter"]["flat"].data
    shapes: dict[str, list[int]] = {}
    for name, (b_shape, a_shape, _) in sorted(layout["pairs"].items()):
        shapes |= {f"{name}.lora_A": a_shape, f"{name}.lora_B": b_shape}
    shapes |= dict(sorted(layout["tensors"].items()))
    rows = {name: shape[0] if len(shape) > 1 else 1 for name, shape in shapes.items()}
    scale, start = 0, 4 * sum(rows.values()) if layout["codec"] == "int8" else 0
    arrays = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        if layout["codec"] == "fp32":
            values = np.frombuffer(data, "<f4", size, start)
            start += 4 * size
        elif layout["codec"] == "bf16":
            halves = np.frombuffer(data, "<u2", size, start).astype(np.uint32)
            values = (halves * 2**16).astype(np.uint32).view(np.float32)
            start += 2 * size
        else:
            steps = np.frombuffer(data, np.int8, size, start).reshape(rows[name], -1)
            scales = np.frombuffer(data, "<f4", rows[name], scale)[:, None]
            values = (steps.astype(np.float32) * scales).ravel()
            scale, start = scale + 4 * rows[name], start + size
        arrays[name] = values.reshape(shape)
    assert start == len(data)
    return arrays


def same_arrays(adapter: Any, arrays: dict[str, Any]) -> bool:
    """Whether the product read the same numbers under the same names."""
    got = dict(adapter.arrays())
    return got.keys() == arrays.keys() and all(
        got[name].shape == array.shape and np.array_equal(got[name], array)
        for name, array in arrays.items()
    )


def check_update_independently(content: RecordDict, codec: str) -> None:
    """Everything that makes an update one of this round, by a second reader."""
    header = json.loads(content["header"]["json"])
    assert (header["site"], header["round"], header["action"]) == (SITE, ROUND, "train")
    assert header["failure"] is None
    assert 0 < header["weight"] <= RECORDS
    assert list(header["layouts"]) == ["adapter"]
    layout = json.loads(header["layouts"]["adapter"])
    assert {"pairs": layout["pairs"], "tensors": layout["tensors"]} == MODEL.layout()
    data = content["payload.adapter"]["flat"].data
    assert layout["codec"] == codec
    assert layout["nbytes"] == len(data) <= 2000
    assert layout["digest"] == hashlib.sha256(data).hexdigest()


def check_numbers_independently(arrays: dict[str, Any]) -> None:
    """Numbers that a training could have reached."""
    for array in arrays.values():
        assert np.isfinite(array).all()
        assert np.abs(array).max() <= 1e6


def check_reported_independently(reply: Reply) -> None:
    """Numbers that may enter metrics.jsonl and sums over sites."""
    for key, table in {**reply.metrics, "numbers": reply.numbers}.items():
        assert key == "numbers" or re.fullmatch(
            "(received|personal|local-only)/(validation|test)", key
        )
        for name, value in table.items():
            assert re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)
            assert name not in {"round", "site", "phase", "split", "bytes_up", "bytes_down"}
            assert math.isfinite(value)
            assert abs(value) <= 1e15
            assert 0 <= value <= 1 or name not in {"accuracy", "auc", "f1"}
    json.dumps([reply.metrics, reply.numbers], allow_nan=False)


# ---- a coordinator that shakes hands -----------------------------------------------------------


class Handshake:
    """Receives a node's words about its sites, beside those of an honest node."""

    def __init__(self) -> None:
        honest = [FakeSite(site, 40)._describe(CONFIG) for site in ("Switzerland", "VA Long Beach")]
        replies = [Reply(d["site"], 0, Action.DESCRIBE, description=d) for d in honest]
        self._honest = [handshake.SiteAnswer(reply, 1, 0.0, 2e9) for reply in replies]

    def receive(self, content: RecordDict) -> str:
        """Return ``accepted`` or the name of the refusal."""
        message = SimpleNamespace(content=content, has_error=lambda: False)
        node = NodeAnswer(message, NODE, 0.0, 2e9)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as log:
            patch.setattr(handshake, "_ask_nodes", lambda *_: [*self._honest, *node.sites()])
            try:
                roster = handshake.shake_hands(None, CONFIG)
            except FedappError as error:
                check_sentence(str(error))
                return type(error).__name__
        check_roster_independently(roster)
        assert all(line.isprintable() for line in log.getvalue().splitlines())
        return "accepted"


def check_roster_independently(roster: Any) -> None:
    """The sites that take part mean the same run, and what they said can be written down."""
    honest = honest_descriptions()[0].description
    assert {"Switzerland", "VA Long Beach"} <= set(roster.sites)
    for site, member in roster.members.items():
        told = member.description.model_dump()
        assert site.isprintable()
        for key in set(honest) - {"site", "examples", "clock", "notes", "device", "data_digest"}:
            if key not in {"base_model", "label_map", "targets", "heads", "torch_version"}:
                assert told[key] == honest[key], key
        assert all(0 <= count <= 10**9 for count in told["examples"].values())
    json.dumps(roster.digests(), allow_nan=False)
    told = [m.description.model_dump(exclude={"clock"}) for m in roster.members.values()]
    json.dumps(told, allow_nan=False)


# ---- a site ------------------------------------------------------------------------------------


def fake_resident() -> Any:
    """A resident model that has live parameters and no layers."""
    parameters = AdapterParameters.__new__(AdapterParameters)
    parameters.pairs = {
        name: LivePair(live(pair.b_mr), live(pair.a_rn), pair.scaling)
        for name, pair in MODEL.pairs.items()
    }
    parameters.tensors = {name: live(tensor) for name, tensor in MODEL.tensors.items()}
    task = SimpleNamespace(prepare=lambda records: [])
    return SimpleNamespace(parameters=parameters, device=torch.device("cpu"), task=task)


def live(array: Any) -> torch.nn.Parameter:
    """A parameter of the array's shape."""
    return torch.nn.Parameter(torch.zeros(array.shape))


class Node:
    """The ClientApp of a node with two sites, called as Flower calls it."""

    def __init__(self, action: Action) -> None:
        self._action, self._resident = action, fake_resident()
        splits = {name: [] for name in ("train", "validation", "test")}
        self._sites = {site: LocalSite(SiteData(site, ["no", "yes"], splits)) for site in SITES}

    def receive(self, content: RecordDict) -> str:
        """Return ``accepted`` or the kind of the failure that the site answers with."""
        metadata = Metadata(
            run_id=1, message_id="m", src_node_id=1, dst_node_id=2, reply_to_message_id="",
            group_id="", created_at=0.0, ttl=60.0, message_type=MESSAGE_TYPES[self._action],
        )  # fmt: skip
        context = Context(1, 2, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hosting, "hosted_sites", lambda *_: self._sites)
            patch.setattr("client_app.site.load_resident", lambda *_: self._resident)
            patch.setattr("client_app.site.describe", lambda *_: FAKE_DESCRIPTION)
            answer = app(Message(metadata=metadata, content=content), context).content
        for failure in failures(answer):
            check_sentence(failure["message"])
            assert failure["kind"] in KINDS, failure
            return failure["kind"]
        if self._action is Action.EVALUATE:
            live = {
                name: parameter.detach().numpy()
                for name, parameter in self._resident.parameters.named_arrays()
            }
            assert same_arrays(self._resident.parameters.read(), read_arrays(content))
            assert all(np.isfinite(array).all() for array in live.values())
        return "accepted"


def failures(answer: RecordDict) -> list[dict[str, str]]:
    """The failures of an answer, whose site may be a name that no coordinator would take."""
    header = json.loads(str(answer["header"]["json"]))
    replies = header.get("replies", [header])
    return [reply["failure"] for reply in replies if reply["failure"] is not None]


# ---- the tests ---------------------------------------------------------------------------------

RECEIVERS: dict[str, tuple[Callable[[random.Random], Sender], Callable[[], Any]]] = {
    **{
        f"{codec} updates": (partial(reply_sender, codec=codec), partial(Coordinator, codec))
        for codec in CODECS
    },
    "handshakes": (description_sender, Handshake),
    "instructions": (instruction_sender, partial(Node, Action.EVALUATE)),
    "queries": (query_sender, partial(Node, Action.DESCRIBE)),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A site logs every refusal, which pytest would keep."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def feed(
    what: str, count: int, seed: int, watch: Callable[[RecordDict], Any] = nullcontext
) -> Counter[str]:
    """Send ``count`` mutated messages, each within ``watch``, and return how they ended."""
    sender_of, receiver_of = RECEIVERS[what]
    sender, receiver = sender_of(random.Random(seed)), receiver_of()
    outcomes: Counter[str] = Counter()
    for number in range(count):
        content = sender.draw()
        try:
            with watch(content):
                outcome = receiver.receive(content)
        except Exception as error:
            where = f"{what}, seed {seed}, message {number}: {shown(content)}"
            raise AssertionError(where) from error
        outcomes[outcome] += 1
    return outcomes


def shown(content: RecordDict) -> str:
    """The part of a message that a person can read."""
    record = content.get("header")
    return f"{list(content)} {dict(record or {})!r:.3000}"


def size(content: RecordDict) -> int:
    """Bytes of a message."""
    header = content.get("header")
    text = header.get("json") if header is not None else None
    return payload_bytes(content) + (len(text) if isinstance(text, str) else 0)


@contextmanager
def bounded_memory(content: RecordDict) -> Iterator[None]:
    """Fail if reading a message takes much more than the message."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    yield
    taken = tracemalloc.get_traced_memory()[1] - before
    assert taken < MEBIBYTE / 2 + 20 * size(content), f"{taken} bytes"


@pytest.mark.parametrize("what", RECEIVERS)
def test_mutated_messages_are_refused_by_name_in_bounded_memory(what: str) -> None:
    feed(what, 20, seed=1)  # what is loaded once is no message's
    tracemalloc.start()
    try:
        outcomes = feed(what, 340, seed=0, watch=bounded_memory)
    finally:
        tracemalloc.stop()

    assert "accepted" in outcomes


@pytest.mark.parametrize("what", ["fp32 updates", "handshakes", "instructions"])
@pytest.mark.parametrize(
    ("count", "seed"), [(150, 0), pytest.param(10_000, 1, marks=pytest.mark.slow)]
)
def test_mutated_protobuf_is_refused_by_flower_or_by_name(what: str, count: int, seed: int) -> None:
    """Flower's own bytes of a message: what Flower can still read, we read."""
    rng = random.Random(seed)
    sender_of, receiver_of = RECEIVERS[what]
    sender, receiver = sender_of(rng), receiver_of()
    sender.damage_share = 0.0
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        data = recorddict_to_proto(sender.draw()).SerializeToString()
        try:
            content = recorddict_from_proto(ProtoRecordDict.FromString(mutate_bytes(rng, data)))
        except Exception as error:  # Flower's, before any of our code
            outcomes[f"Flower: {type(error).__name__}"] += 1
            continue
        outcomes[receiver.receive(content)] += 1
    print(what, dict(outcomes))
    assert sum(n for name, n in outcomes.items() if "Flower" not in name) > 0.2 * count


@pytest.mark.slow
def test_a_hundred_thousand_mutated_messages() -> None:
    counts = {
        "fp32 updates": 30_000,
        "bf16 updates": 22_000,
        "int8 updates": 22_000,
        "handshakes": 10_000,
        "instructions": 11_000,
        "queries": 5_000,
    }
    for what in counts:
        feed(what, 20, seed=1)
    before = _peak_kilobytes(start_anew=True)

    for what, count in counts.items():
        started = time.process_time()
        outcomes = feed(what, count, seed=2)
        seconds = time.process_time() - started
        listed = ", ".join(f"{name} {number}" for name, number in outcomes.most_common())
        print(f"{count} {what} in {seconds:.1f} s: {listed}")

    grown = _peak_kilobytes() - before
    print(f"peak memory grew by {grown / 1024:.1f} MiB")
    assert grown < 64 * 1024


def _peak_kilobytes(*, start_anew: bool = False) -> int:
    """Return the largest resident memory; ``start_anew``: from now on, not since the start."""
    if sys.platform == "linux":
        if start_anew:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
