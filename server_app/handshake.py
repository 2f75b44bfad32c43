"""Before round 1: who is there, and do all sites and the coordinator mean the same run?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

import fedapp
from fedapp import errors
from fedapp.config import RunConfig
from fedapp.errors import FedappError, HandshakeError, MissingReplies
from fedapp.exchange import Action, Reply, SiteDescription
from fedapp.wire import MESSAGE_TYPES, content_to_descriptions, describe_to_content
from server_app.agreement import check_equal
from server_app.collect import POLL_SECONDS, TTL_MARGIN_SECONDS, error_text, failure_text
from server_app.log import log, names, warn
from server_app.roster import Member, Roster
from server_app.sampling import check_sites

CLOCK_WARNING_SECONDS = 60.0


def shake_hands(grid: Grid, config: RunConfig, tick: Callable[[], None] | None = None) -> Roster:
    """Ask every node for its sites and compare what they say.

    Raises
    ------
    HandshakeError, DataError, ConfigError, DeviceError
        With the first thing that does not fit, or the first site's own sentence.
    MissingReplies
        If too few sites answer in time.
    """
    answers = sorted(_ask_nodes(grid, config, tick), key=lambda answer: answer.reply.site)
    failed = [answer.reply for answer in answers if answer.reply.failure is not None]
    if failed:
        raise _site_error(failed)
    members: dict[str, Member] = {}
    for answer in answers:
        site, member = answer.reply.site, _member(answer)
        if site in members:
            raise HandshakeError(
                "two nodes say that they are this site; give every hospital its own name",
                site=site,
            )
        members[site] = member
    check_equal(members, config)
    check_sites(members, config)
    roster = Roster(members)
    _tell(roster)
    return roster


@dataclass(frozen=True)
class _Answer:
    reply: Reply
    node_id: int
    asked: float  # Unix seconds
    answered: float


def _ask_nodes(grid: Grid, config: RunConfig, tick: Callable[[], None] | None) -> list[_Answer]:
    """Describe every node that is or comes online, until all of them and enough sites answered."""
    limits = config.federation
    pending: dict[str, tuple[int, float]] = {}  # message id -> node, time asked
    known: set[int] = set()
    answers: list[_Answer] = []
    started = time.monotonic()
    content = describe_to_content(config)
    while True:
        new = sorted(set(grid.get_node_ids()) - known)
        if new:
            messages = [
                Message(
                    content=content,
                    dst_node_id=node,
                    message_type=MESSAGE_TYPES[Action.DESCRIBE],
                    ttl=limits.handshake_timeout + TTL_MARGIN_SECONDS,
                    group_id="0",
                )
                for node in new
            ]
            asked = time.time()
            grid.push_messages(messages)
            known.update(new)
            pending |= {m.metadata.message_id: (m.metadata.dst_node_id, asked) for m in messages}
        for message in grid.pull_messages(sorted(pending)) if pending else ():
            entry = pending.pop(message.metadata.reply_to_message_id, None)
            if entry is not None:
                answers += _read(message, *entry)
        enough = len(answers) >= limits.min_sites
        # A last look: nodes may have come online while the first ones answered.
        if enough and not pending and not set(grid.get_node_ids()) - known:
            return answers
        waited = time.monotonic() - started
        if not pending and not enough and waited > limits.connect_timeout:
            raise _too_few(answers, config, limits.connect_timeout, "connected")
        if waited > limits.connect_timeout + limits.handshake_timeout:
            if not enough:
                raise _too_few(answers, config, limits.handshake_timeout, "answered")
            warn(f"{len(pending)} node(s) did not answer the handshake and are left out")
            return answers
        if tick is not None:
            tick()
        time.sleep(POLL_SECONDS)


def _too_few(answers: list[_Answer], config: RunConfig, seconds: float, what: str) -> FedappError:
    present = ", ".join(sorted(answer.reply.site for answer in answers)) or "none"
    return MissingReplies(
        f"{len(answers)} of at least {config.federation.min_sites} sites {what} within "
        f"{seconds:g} s (present: {present}); start the missing sites, or lower "
        "federation.min-sites",
    )


def _read(message: Message, node_id: int, asked: float) -> Iterator[_Answer]:
    if message.has_error():
        raise HandshakeError(
            f"node {node_id} cannot describe its sites: {error_text(message)}; see its own log"
        )
    for reply in content_to_descriptions(message.content):
        yield _Answer(reply, node_id, asked, time.time())


def _site_error(failed: list[Reply]) -> FedappError:
    """Rebuild the first site's error, so that the run ends with its sentence and exit code."""
    first, others = failed[0], [reply.site for reply in failed[1:]]
    kind = getattr(errors, first.failure.kind, None) if first.failure else None
    plain = isinstance(kind, type) and issubclass(kind, FedappError)
    error = kind if plain and kind is not errors.UpdateRefused else HandshakeError
    text = failure_text(first)
    if others:
        text += f" (problems were also reported by {names(others)})"
    return error(text, site=first.site)  # type: ignore[misc]


def _member(answer: _Answer) -> Member:
    site = answer.reply.site
    try:
        description = SiteDescription.model_validate(answer.reply.description)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise HandshakeError(
            f"field '{field}' of the description: {first['msg']}; "
            f"install fedapp {fedapp.__version__} there",
            site=site,
        ) from None
    if not site or description.site != site:
        raise HandshakeError(f"the description is of '{description.site}'", site=site or "?")
    offset = 0.0
    if description.clock < answer.asked:
        offset = description.clock - answer.asked
    elif description.clock > answer.answered:
        offset = description.clock - answer.answered
    return Member(answer.node_id, description, offset)


def _tell(roster: Roster) -> None:
    first = roster.reference
    log(f"{len(roster.members)} sites, base model {first.base_model}, labels {first.label_map}")
    for site, member in roster.members.items():
        description = member.description
        records = ", ".join(f"{n} {split}" for split, n in description.examples.items())
        log(f"  {site}: {records} records; {description.device}")
        for note in description.notes:
            log(f"    {site}: {note}")
        if abs(member.clock_offset) > CLOCK_WARNING_SECONDS:
            warn(
                f"site {site}: its clock is {member.clock_offset:+.0f} s off the coordinator's; "
                "synchronise it"
            )
        elif member.clock_offset:
            log(f"    {site}: clock {member.clock_offset:+.1f} s")
