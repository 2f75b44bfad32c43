"""Ask nodes which sites they host, and read what the sites say of themselves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from pydantic import ValidationError

import fedapp
from fedapp.config import RunConfig
from fedapp.errors import HandshakeError, WireError
from fedapp.exchange import Action, Reply, SiteDescription
from fedapp.text import clean
from fedapp.wire import MESSAGE_TYPES, content_to_descriptions, describe_to_content
from server_app.collect import TTL_MARGIN_SECONDS, error_text
from server_app.log import warn
from server_app.pull import pull
from server_app.push import push


@dataclass(frozen=True)
class SiteAnswer:
    """What one site said, and when its node was asked and had answered (Unix seconds)."""

    reply: Reply
    node_id: int
    asked: float
    answered: float

    def description(self) -> SiteDescription:
        """Return the site's description of itself.

        Raises
        ------
        HandshakeError
            If it is malformed, or another site's.
        """
        site = self.reply.site
        try:
            description = SiteDescription.model_validate(self.reply.description, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = clean(".".join(map(str, first["loc"])))
            raise HandshakeError(
                f"field '{field}' of the description: {clean(first['msg'], 300)}; "
                f"install fedapp {fedapp.__version__} there",
                site=site,
            ) from None
        if not site or description.site != site:
            raise HandshakeError(f"the description is of '{description.site}'", site=site or "?")
        return description


@dataclass(frozen=True)
class NodeAnswer:
    """The message of one node, not read yet, or why it cannot be."""

    message: Message | WireError
    node_id: int
    asked: float
    answered: float

    def sites(self) -> list[SiteAnswer]:
        """Return one answer per hosted site.

        Raises
        ------
        HandshakeError
            If the node's app failed.
        WireError
            If the message does not have the agreed form.
        """
        if isinstance(self.message, WireError):
            raise WireError(f"node {self.node_id}: {self.message.message}")
        if self.message.has_error():
            raise HandshakeError(
                f"node {self.node_id} cannot describe its sites: {error_text(self.message)}; "
                "see its own log"
            )
        try:
            replies = content_to_descriptions(self.message.content)
        except WireError as error:
            raise WireError(f"the answer of node {self.node_id}: {error.message}") from None
        return [SiteAnswer(reply, self.node_id, self.asked, self.answered) for reply in replies]


class NodeQuery:
    """DESCRIBE requests to any number of nodes, each asked once; never waits.

    One that goes away before it answers is asked again when it is back.

    Parameters
    ----------
    grid : Grid
    config : RunConfig
        The settings that the nodes are sent.
    """

    def __init__(self, grid: Grid, config: RunConfig) -> None:
        self._grid = grid
        self._content = describe_to_content(config)
        self._patience = config.federation.handshake_timeout
        self._ttl = self._patience + TTL_MARGIN_SECONDS
        self._known: set[int] = set()
        self._untaken: set[int] = set()
        self._pending: dict[str, tuple[int, float]] = {}  # message id -> node, time asked

    @property
    def pending(self) -> int:
        """How many nodes have not answered yet."""
        return len(self._pending)

    def new(self, nodes: Iterable[int]) -> set[int]:
        """Return those of ``nodes`` that have not been asked."""
        return set(nodes) - self._known - self._untaken

    def ask(self, nodes: Iterable[int]) -> None:
        """Ask those of ``nodes`` that have not been asked; one that Flower refuses, again."""
        asked_now = sorted(set(nodes) - self._known)
        if not asked_now:
            return
        messages = [
            Message(
                content=self._content,
                dst_node_id=node,
                message_type=MESSAGE_TYPES[Action.DESCRIBE],
                ttl=self._ttl,
                group_id="0",
            )
            for node in asked_now
        ]
        asked = time.time()
        taken = push(self._grid, messages)
        for message in messages:
            node, key = message.metadata.dst_node_id, message.metadata.message_id
            if key in taken:
                self._known.add(node)
                self._untaken.discard(node)
                self._pending[key] = (node, asked)
            elif node not in self._untaken:
                self._untaken.add(node)
                warn(f"Flower did not take the request to node {node}; it is left out for now")

    def poll(self) -> list[NodeAnswer]:
        """Return the answers that have arrived since the last call."""
        if not self._pending:
            return []
        answers = []
        oldest = min(asked for _, asked in self._pending.values())
        deadline = time.monotonic() + oldest + self._patience - time.time()
        for answered, message in pull(self._grid, self._pending, deadline):
            entry = self._pending.pop(answered, None)
            if entry is None:
                continue
            if _went_away(message):
                self._known.discard(entry[0])
                warn(f"node {entry[0]} went away before it answered; it is asked when it is back")
                continue
            answers.append(NodeAnswer(message, *entry, time.time()))
        return answers


def _went_away(message: Message | WireError) -> bool:
    """Whether the SuperLink answers in the place of a node that is not there any more."""
    error = message.error if isinstance(message, Message) and message.has_error() else None
    return error is not None and error.code == ErrorCode.NODE_UNAVAILABLE
