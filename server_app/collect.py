"""Ask sites and gather their answers, with a deadline on every wait.

Flower's own helper waits in steps of three seconds, reports nothing of who did not answer, and
takes the sender of an error from the message, which is wrong when the coordinator's side made it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from fedapp.errors import FedappError, PolicyRefused, UpdateRefused, WireError
from fedapp.exchange import Action, Failure, Instruction, Reply
from fedapp.reported import check_reported
from fedapp.text import clean
from fedapp.wire import (
    MESSAGE_TYPES,
    PayloadCache,
    content_to_reply,
    instruction_to_content,
    payload_bytes,
)
from server_app.log import log, names
from server_app.pull import pull
from server_app.push import push

POLL_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0  # after a poll that took long: it may have waited for one reply
POLL_SECONDS_IN_PROCESS = 0.05  # a simulation's grid answers without a request
# An unanswered message is dropped by Flower this long after our own deadline, not before.
TTL_MARGIN_SECONDS = 60.0
# The same seed, model and records give the same result, so that asking again is in vain.
LASTING = frozenset(
    {"TrainingError", "DataError", "ConfigError", "non-finite", "too-large", "not mergeable"}
    | {"PolicyRefused"}  # of the hours: not within a round
)

POLICY = "policy"

# How Flower quotes `client_app.worker_pool.WorkerDied`, an exception, and one of a client app.
_WORKER_DIED = re.compile(r"\.WorkerDied'>:<'(.*)'>", re.DOTALL)
_QUOTED = re.compile(r"<class '[^']*'>:<'(.*)'>", re.DOTALL)
_RAISED = "Exception ClientAppException occurred. Message: "
_LONGEST_CAUSE = 300  # characters

Tick = Callable[[], None]


@dataclass(frozen=True)
class Problem:
    """Why a site's answer is missing; ``kind`` is machine-readable, ``reason`` a sentence."""

    kind: str  # "timeout", "unsent", "error", "died", "failure", "policy", "malformed",
    # "not mergeable", or one of `fedapp.validation.REASONS`
    reason: str
    failure: Failure | None = None

    @property
    def by_policy(self) -> bool:
        """Whether the site's policy says no, which is its right and no fault."""
        return self.kind == POLICY

    @property
    def lasting(self) -> bool:
        """Whether the site would give the same answer again."""
        return (self.failure.kind if self.failure else self.kind) in LASTING


@dataclass
class Collected:
    """What came back: every asked site is either in ``replies`` or in ``problems``.

    Attributes
    ----------
    replies : dict of str to Reply
        Its metrics and numbers have passed `fedapp.reported.check_reported`.
    problems : dict of str to Problem
    bytes_down, bytes_up : dict of str to int
        Bytes of the payloads by site: what Flower took, and what arrived, usable or not.
    """

    replies: dict[str, Reply] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)


def collect_messages(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    tick: Tick | None = None,
    node_of: Mapping[str, int] | None = None,
) -> tuple[dict[str, Message | WireError], set[str]]:
    """Push messages and pull their replies until all are there or ``timeout`` seconds are over.

    Returns
    -------
    replies : dict of str to Message or WireError
        Reply, or why it cannot be read, by the id of the message it answers (each message of
        ``messages`` knows its id afterwards). Duplicates and replies to anything else are named in
        the log and dropped.
    unsent : set of str
        Ids of messages that Flower did not take.
    """
    batch = list(messages)
    taken = push(grid, batch)
    asked = {message.metadata.message_id for message in batch}
    pending = asked & taken
    replies: dict[str, Message | WireError] = {}
    interval = POLL_SECONDS_IN_PROCESS if isinstance(grid, InMemoryGrid) else POLL_SECONDS
    deadline = time.monotonic() + timeout
    while pending:
        began = time.monotonic()
        for answered, reply in pull(grid, pending, deadline):
            if answered in pending:
                pending.remove(answered)
                replies[answered] = reply
            elif isinstance(reply, Message):
                kind = "a second reply" if answered in asked else "a late or unknown reply"
                log(f"{kind} from {name_node(reply.metadata.src_node_id, node_of)} is ignored")
        if tick is not None:
            tick()
        now = time.monotonic()
        left = deadline - now
        if not pending or left <= 0:
            break
        # With very many sites over a network, at most half of the time goes into asking.
        time.sleep(min(max(interval, min(now - began, LONGEST_PAUSE_SECONDS)), left))
    return replies, asked - taken


def collect(
    grid: Grid,
    instructions: Iterable[Instruction],
    node_of: Mapping[str, int],
    timeout: float,
    tick: Tick | None = None,
) -> Collected:
    """Send one instruction per site, in the given order, and gather the replies.

    Parameters
    ----------
    grid : Grid
    instructions : iterable of Instruction
        At most one per site.
    node_of : mapping of str to int
        Node id by site.
    timeout : float
        Seconds until the missing ones are given up.
    tick : callable, optional
        Called at every poll, five or twenty times a second.
    """
    cache = PayloadCache()
    asked: list[tuple[Instruction, Message]] = [
        (instruction, to_message(instruction, node_of[instruction.site], timeout, cache))
        for instruction in instructions
    ]
    messages = [message for _, message in asked]
    answers, unsent = collect_messages(grid, messages, timeout, tick, node_of)
    collected = Collected()
    for instruction, message in asked:
        site = instruction.site
        answer = answers.get(message.metadata.message_id)
        if message.metadata.message_id not in unsent:
            collected.bytes_down[site] = sum(p.nbytes for p in instruction.payloads.values())
        result: Reply | Problem
        if isinstance(answer, WireError):
            result = Problem("malformed", answer.message)
        elif answer is not None:
            if answer.has_content():
                collected.bytes_up[site] = payload_bytes(answer.content)
            result = read_reply(answer, instruction, node_of)
        elif message.metadata.message_id in unsent:
            result = Problem("unsent", "Flower did not take the message; it may be too large")
        else:
            result = Problem("timeout", f"no reply within {timeout:g} s")
        if isinstance(result, Problem):
            collected.problems[site] = result
        else:
            collected.replies[site] = result
    return collected


def to_message(
    instruction: Instruction, node_id: int, timeout: float, cache: PayloadCache | None = None
) -> Message:
    """Wrap an instruction in a Flower message."""
    return Message(
        content=instruction_to_content(instruction, cache),
        dst_node_id=node_id,
        message_type=MESSAGE_TYPES[instruction.action],
        ttl=timeout + TTL_MARGIN_SECONDS,
        group_id=str(instruction.round),
    )


def read_reply(
    message: Message, instruction: Instruction, node_of: Mapping[str, int]
) -> Reply | Problem:
    """Return the reply of the asked site, or why it cannot be used.

    An update of another round is let through: refusing it is `fedapp.validation`'s business.
    """
    if message.has_error():
        kind = "died" if _WORKER_DIED.search(message.error.reason or "") else "error"
        return Problem(kind, error_text(message))
    sender, expected = message.metadata.src_node_id, node_of[instruction.site]
    if sender != expected:
        return Problem(
            "malformed",
            f"the reply came from {name_node(sender, node_of)}, expected node {expected}",
        )
    try:
        reply = content_to_reply(message.content)
    except UpdateRefused as error:
        return Problem(error.reason, f"reply refused ({error.reason}): {error.message}")
    except FedappError as error:
        return Problem("malformed", error.message)
    if reply.site != instruction.site or reply.action != instruction.action:
        return Problem(
            "malformed",
            f"the reply is for {reply.action} of site {reply.site}, "
            f"expected {instruction.action} of site {instruction.site}",
        )
    if instruction.action is not Action.TRAIN and reply.round != instruction.round:
        return Problem(
            "wrong-round", f"the reply is for round {reply.round}, expected {instruction.round}"
        )
    if reply.failure is not None:
        kind = POLICY if reply.failure.kind == PolicyRefused.__name__ else "failure"
        return Problem(kind, failure_text(reply), reply.failure)
    try:
        return check_reported(reply, instruction.config.model.task)
    except UpdateRefused as error:
        return Problem(error.reason, f"reply refused ({error.reason}): {error.message}")


def name_node(node_id: int, node_of: Mapping[str, int] | None) -> str:
    """Name a node by its id and, where they are known, its sites."""
    sites = sorted(site for site, node in (node_of or {}).items() if node == node_id)
    return f"node {node_id}" + (f" ({names(sites)})" if sites else "")


def failure_text(reply: Reply) -> str:
    """Return the sentence of a failed reply without the site and round that it may start with."""
    if reply.failure is None:
        raise ValueError("the reply has no failure")
    text = reply.failure.message
    if text.startswith(f"site {reply.site}"):
        text = text.partition(": ")[2] or text
    return text


def error_text(message: Message) -> str:
    """Describe an error reply of Flower in one line: the first cause, without a stack trace."""
    reason = (message.error.reason or "").strip()
    if died := _WORKER_DIED.search(reason):
        return f"its worker process died: {_one_line(died.group(1))}"
    if quoted := _QUOTED.fullmatch(reason):
        reason = quoted.group(1)
    _, raised, said = reason.rpartition(_RAISED)
    cause = _one_line(said if raised else reason.rstrip().rpartition("\n")[2])
    return f"its client app failed (Flower error {message.error.code}: {cause})"


def _one_line(text: str) -> str:
    """Return what another machine said, on one line and cut."""
    most = 4 * _LONGEST_CAUSE  # blanks are joined: more than this is never shown
    return clean(" ".join(text[:most].split()) or "no reason given", _LONGEST_CAUSE)
