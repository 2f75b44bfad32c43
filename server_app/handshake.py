"""Before round 1: who is there, and do all sites and the coordinator mean the same run?"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

import fedapp
from fedapp import errors
from fedapp.config import RunConfig
from fedapp.errors import FedappError, HandshakeError, MissingReplies
from fedapp.exchange import Action, Reply, SiteDescription
from fedapp.wire import MESSAGE_TYPES, content_to_descriptions, describe_to_content
from server_app.collect import POLL_SECONDS, TTL_MARGIN_SECONDS, error_text, failure_text
from server_app.log import log, names, warn
from server_app.sampling import check_sites

CLOCK_WARNING_SECONDS = 60.0


@dataclass(frozen=True)
class Member:
    """One site of the roster.

    Attributes
    ----------
    node_id : int
        Flower's address of the node that hosts the site; random, never shown.
    description : SiteDescription
    clock_offset : float
        Seconds by which the site's clock is ahead; 0 within the time the answer took.
    """

    node_id: int
    description: SiteDescription
    clock_offset: float


class Roster:
    """The sites of a run by name, sorted.

    Parameters
    ----------
    members : dict of str to Member
    """

    def __init__(self, members: dict[str, Member]) -> None:
        self.members = dict(sorted(members.items()))

    @property
    def sites(self) -> list[str]:
        """Names of the sites, sorted."""
        return list(self.members)

    @property
    def nodes(self) -> dict[str, int]:
        """Node id by site."""
        return {site: member.node_id for site, member in self.members.items()}

    @property
    def reference(self) -> SiteDescription:
        """A description that holds for every site in all that was compared."""
        return next(iter(self.members.values())).description

    def largest_first(self, sites: list[str]) -> list[str]:
        """Order sites by training records, most first, so that parallel workers end together."""

        def key(site: str) -> tuple[int, str]:
            return -self.members[site].description.examples.get("train", 0), site

        return sorted(sites, key=key)

    def digests(self) -> dict[str, Any]:
        """What a resumed run must find again."""
        first = self.reference
        return {
            "base model": first.base_model_digest,
            "adapter layout": first.layout_digest,
            "initial adapter": first.initial_digest,
            "label map": list(first.label_map),
            "records": {
                site: dict(sorted(member.description.examples.items()))
                for site, member in self.members.items()
            },
        }


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
    _check_equal(members, config)
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


@dataclass(frozen=True)
class _Field:
    """One thing that must be equal; ``expected`` is None where only the sites can tell."""

    name: str
    value: Callable[[SiteDescription], Any]
    expected: Any
    advice: str


def _fields(config: RunConfig) -> list[_Field]:
    # In the order in which one cause explains the next: a version before the digests it changes.
    same_config = "all sites must run with the coordinator's settings"
    return [
        _Field(
            "fedapp version",
            lambda d: d.package_version,
            fedapp.__version__,
            f"install fedapp {fedapp.__version__} there",
        ),
        _Field(
            "torch version",
            lambda d: d.torch_version.partition("+")[0],
            None,
            "install the same torch everywhere, or the sites do not start from the same numbers",
        ),
        _Field("task", lambda d: d.task, config.model.task, same_config),
        _Field(
            "base model digest",
            lambda d: d.base_model_digest,
            None,
            "give every site the same model files",
        ),
        _Field("rank", lambda d: d.rank, config.lora.rank, same_config),
        _Field("alpha", lambda d: d.alpha, config.lora.alpha, same_config),
        _Field("targets", lambda d: sorted(d.targets), sorted(config.lora.targets), same_config),
        _Field("heads", lambda d: sorted(d.heads), None, same_config),
        _Field("dtype", lambda d: d.dtype, None, same_config),
        _Field(
            "label map",
            lambda d: list(d.label_map),
            list(config.data.labels) or None,
            "set data.labels to all labels in one order",
        ),
        _Field("adapter layout digest", lambda d: d.layout_digest, None, same_config),
        _Field(
            "threads",
            lambda d: d.threads,
            config.train.threads or None,
            "set train.threads, since sums depend on the number of threads",
        ),
        _Field(
            "initial adapter digest",
            lambda d: d.initial_digest,
            None,
            "the sites derive different first adapters from the same seed; "
            "install the same packages everywhere",
        ),
    ]


def _check_equal(members: dict[str, Member], config: RunConfig) -> None:
    for field in _fields(config):
        values = {site: field.value(member.description) for site, member in members.items()}
        expected = field.expected if field.expected is not None else _most_common(values)
        for site, got in values.items():
            if got != expected:
                source = "the settings" if field.expected is not None else "the other sites"
                raise HandshakeError(
                    f"{field.name} is {_show(got)}, expected {_show(expected)} as {source} "
                    f"have it; {field.advice}",
                    site=site,
                )


def _most_common(values: dict[str, Any]) -> Any:
    """Return the value that most sites have (the first site's on a tie)."""
    texts = [json.dumps(value) for value in values.values()]
    return json.loads(Counter(texts).most_common(1)[0][0]) if texts else None


def _show(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"'{text}'" if isinstance(value, list | str) else text


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
