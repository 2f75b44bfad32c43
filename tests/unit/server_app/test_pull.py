"""A reply that Flower cannot decode is one site's problem; with its own grid on a fake link."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fake_federation import FakeGrid
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, pull_objects
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid, http_grid

from fedapp.config import RunConfig
from fedapp.errors import MissingReplies, WireError
from fedapp.results import RunFolder
from server_app.app import run
from server_app.collect import collect_messages

Damage = Callable[[dict[str, bytes], str], None]


class Link:
    """A SuperLink with a reply to every message, which it forgets when it is asked for it."""

    PushObject = None  # it says that it has all of them

    def __init__(self, messages: list[Message], damage: Damage) -> None:
        self._messages, self._damage = messages, damage
        self._replies: dict[str, Message] = {}
        self._objects: dict[str, bytes] = {}
        self.pulled: dict[str, Message] = {}
        self.pulls = 0

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:
        for number, message in enumerate(self._messages):
            content = RecordDict({"x": ConfigRecord({"number": number})})
            reply = Message(content, reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self._replies[message.metadata.message_id] = reply
            objects = {k: v.deflate() for k, v in get_all_nested_objects(reply).items()}
            if number == 1:
                self._damage(objects, reply.object_id)
            self._objects |= objects
        return PushAppMessagesResponse(message_ids=list(self._replies))

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        self.pulls += 1
        asked = [i for i in request.message_ids if i in self._replies]
        found = [self._replies.pop(i) for i in asked]
        self.pulled |= dict(zip(asked, found, strict=True))
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(m)) for m in found],
            message_object_trees=[get_object_tree(message) for message in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:
        return PullObjectResponse(
            object_found=True,
            object_available=True,
            object_content=self._objects[request.object_id],
        )

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:
        return ConfirmMessageReceivedResponse()


def rewrite(kind: bytes, change: Callable[[bytes], bytes]) -> Damage:
    """Change the body of the objects of a kind; Flower's SuperLink looks at no body."""

    def damage(objects: dict[str, bytes], root: str) -> None:
        for key, content in objects.items():
            head, _, body = content.partition(HEAD_BODY_DIVIDER)
            if head.startswith(kind + b" "):
                objects[key] = head + HEAD_BODY_DIVIDER + change(body)

    return damage


def replace_root(objects: dict[str, bytes], root: str) -> None:
    """Send settings where a message is due."""
    objects[root] = next(c for c in objects.values() if c.startswith(b"ConfigRecord "))


DAMAGES: dict[str, Damage] = {
    "no protobuf": rewrite(b"ConfigRecord", lambda body: b"\xff\xff\xff"),
    "half a protobuf": rewrite(b"Message", lambda body: body[:-3]),
    "no JSON": rewrite(b"RecordDict", lambda body: b"{"),
    "no text": rewrite(b"RecordDict", lambda body: b"\xff"),
    "JSON of another kind": rewrite(b"RecordDict", lambda body: b"[]"),
    "deep JSON": rewrite(b"RecordDict", lambda body: b"[" * 100_000),
    "names of nothing": rewrite(b"RecordDict", lambda body: b'{"x": "y"}'),
    "no message": replace_root,
}


def asked(damage: Damage) -> tuple[HttpGrid, Link, list[Message]]:
    FakeGrid()  # what a Flower process knows of itself
    messages = [
        Message(
            RecordDict({"q": ConfigRecord({"n": n})}), dst_node_id=100 + n, message_type="train"
        )
        for n in range(3)
    ]
    grid, link = HttpGrid(token="t"), Link(messages, damage)
    grid.set_run(Run.create_empty(run_id=11))
    grid._client = link  # type: ignore[assignment]
    return grid, link, messages


@pytest.mark.parametrize("name", DAMAGES)
def test_what_cannot_be_decoded_costs_no_other_reply(name: str) -> None:
    grid, link, messages = asked(DAMAGES[name])

    replies, unsent = collect_messages(grid, messages, timeout=20)

    assert unsent == set()
    assert link.pulls == 3  # and it is not asked for again
    first, broken, last = (replies[message.metadata.message_id] for message in messages)
    assert isinstance(broken, WireError)
    assert broken.message.startswith("the reply cannot be decoded (")
    assert len(broken.message) < 500
    assert broken.message.isprintable()
    for number, reply in ((0, first), (2, last)):
        assert isinstance(reply, Message)
        assert dict(reply.content["x"]) == {"number": number}  # type: ignore[call-overload]


def test_a_reply_in_the_name_of_another_message_is_not_taken_for_its(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a reply answers stands in its body, which its sender wrote."""

    def forge(body: bytes) -> bytes:
        message = ProtoMessage.FromString(body)
        message.metadata.reply_to_message_id = messages[0].metadata.message_id
        return message.SerializeToString()

    grid, _, messages = asked(rewrite(b"Message", forge))
    replies, _ = collect_messages(grid, messages, timeout=0.5)

    first, _, third = (message.metadata.message_id for message in messages)
    assert set(replies) == {first, third}
    assert dict(replies[first].content["x"]) == {"number": 0}  # type: ignore[union-attr,call-overload]
    assert "a late or unknown reply from node 101 is ignored" in capsys.readouterr().out


@pytest.mark.parametrize("after", [2.5, 1000.0], ids=["late", "never"])
def test_a_reply_without_content_holds_nobody_beyond_the_deadline(after: float) -> None:
    """A SuperNode is killed after it announced its reply: Flower would wait for two hours."""
    grid, link, messages = asked(lambda objects, root: None)
    pull_object, began = link.PullObject, time.monotonic()

    def slow(request: Any) -> PullObjectResponse:
        reply = link.pulled.get(messages[1].metadata.message_id)
        mine = reply is not None and request.object_id == reply.object_id
        if mine and time.monotonic() < began + after:
            return PullObjectResponse(object_found=True, object_available=False)
        return pull_object(request)

    link.PullObject = slow  # type: ignore[method-assign]
    replies, _ = collect_messages(grid, messages, timeout=4)

    assert time.monotonic() - began < 6.5
    assert set(replies) == {message.metadata.message_id for message in messages}
    reply = replies[messages[1].metadata.message_id]
    assert isinstance(reply, Message)
    assert reply.has_error() == (after > 4)
    assert http_grid.pull_objects is pull_objects, "it is as it was"  # type: ignore[attr-defined]


def test_a_poll_that_took_long_is_followed_by_a_short_pause() -> None:
    grid, link, messages = asked(lambda objects, root: None)
    pull_messages, times = link.PullMessages, []

    def slow(request: Any) -> PullAppMessagesResponse:
        times.append(time.monotonic())
        if len(times) == 1:
            time.sleep(3.5)
            return PullAppMessagesResponse()
        return pull_messages(request)

    link.PullMessages = slow  # type: ignore[method-assign]
    replies, _ = collect_messages(grid, messages, timeout=30)

    assert len(replies) == 3
    assert times[-1] - times[0] < 3.5 + 3


def test_a_push_whose_answer_was_lost_is_made_good() -> None:
    """The SuperLink says that it does not wait for an object which it has got."""
    grid, link, messages = asked(lambda objects, root: None)
    known, refused = set(), []
    push_messages = link.PushMessages

    def what_is_missing(request: Any) -> PushAppMessagesResponse:
        trees = [tree.object_id for one in request.message_object_trees
                 for tree in iterate_object_tree(one)]  # fmt: skip
        answer = push_messages(request)
        answer.objects_to_push.extend(dict.fromkeys(i for i in trees if i not in known))
        return answer

    def push_object(request: Any) -> PushObjectResponse:
        known.add(request.object_id)
        if not refused:
            refused.append(request.object_id)
            return PushObjectResponse(stored=False)
        return PushObjectResponse(stored=True)

    link.PushMessages, link.PushObject = what_is_missing, push_object  # type: ignore
    replies, unsent = collect_messages(grid, messages, timeout=20)

    assert refused
    assert unsent == set()
    assert len(replies) == 3
    assert {message.metadata.message_id for message in messages} <= known


def test_a_link_that_takes_no_object_ends_the_wait() -> None:
    grid, link, messages = asked(lambda objects, root: None)
    ids = [get_object_tree(message).object_id for message in messages]
    push_messages = link.PushMessages

    def all_missing(request: Any) -> PushAppMessagesResponse:
        answer = push_messages(request)
        answer.objects_to_push.extend(ids)
        return answer

    link.PushMessages = all_missing  # type: ignore[method-assign]
    link.PushObject = lambda request: PushObjectResponse(stored=False)  # type: ignore[assignment]
    with pytest.raises(ObjectPushError):
        collect_messages(grid, messages, timeout=20)


def test_a_link_that_is_down_is_no_sites_fault() -> None:
    grid, link, messages = asked(lambda objects, root: None)

    def down(request: Any) -> PullAppMessagesResponse:
        raise httpx.ConnectError("refused")

    link.PullMessages = down  # type: ignore[method-assign]
    with pytest.raises(httpx.ConnectError):
        collect_messages(grid, messages, timeout=20)


@pytest.mark.parametrize(
    "error", [ValueError("bad\x1b[2J" * 1000), KeyError("k"), RecursionError()]
)
def test_in_a_run_the_site_is_named_and_the_others_are_used(
    settings: Callable[..., RunConfig], error: Exception
) -> None:
    """Here Flower keeps the replies, but raises for all that are asked for together."""
    config, grid = settings(federation__max_round_retries=0), FakeGrid()
    honest, broken = grid.pull_messages, set[str]()

    def pull_messages(message_ids: Any) -> Any:
        if broken & set(message_ids):
            raise error
        return honest(message_ids)

    def breaks(batch: list[Message]) -> None:
        hungary = next(n for n, names in grid.hosted.items() if names == ["Hungary"])
        for number, message in enumerate(batch, start=grid._count + 1):
            if message.metadata.message_type == "train" and (
                message.metadata.dst_node_id == hungary
            ):
                broken.add(f"m{number}")

    grid.before_push, grid.pull_messages = breaks, pull_messages  # type: ignore[method-assign]
    with pytest.raises(MissingReplies, match="round 1: 3 of 4 sites sent a valid update") as caught:
        run(grid, config, RunFolder.create(config), 1)

    kind = type(error).__name__
    assert f"site Hungary: the reply cannot be decoded ({kind}" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_node_whose_description_cannot_be_decoded_is_named(
    settings: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, grid = settings(), FakeGrid({"Aalen": 20, "Berne": 20})
    honest = grid.pull_messages

    def pull_messages(message_ids: Any) -> Any:
        if "m2" in message_ids:
            raise ValueError("no text")
        return honest(message_ids)

    monkeypatch.setattr(grid, "pull_messages", pull_messages)
    node = sorted(grid.hosted)[1]
    with pytest.raises(
        WireError, match=rf"node {node}: the reply cannot be decoded \(ValueError: no text\)"
    ):
        run(grid, config, RunFolder.create(config), 1)
