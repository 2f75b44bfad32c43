"""Before round 1: who is there, and do all sites and the coordinator mean the same run?"""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from fedapp import errors
from fedapp.config import RunConfig
from fedapp.errors import FedappError, HandshakeError, MissingReplies, PolicyRefused
from fedapp.exchange import Failure, Reply
from server_app.agreement import check_equal
from server_app.collect import POLL_SECONDS, failure_text
from server_app.descriptions import NodeQuery, SiteAnswer
from server_app.log import log, names, warn
from server_app.roster import Member, Roster
from server_app.sampling import check_sites

CLOCK_WARNING_SECONDS = 60.0
FAILURE_GRACE_SECONDS = 15.0
"""How long after a site's failure others may still tell theirs: one run names them all."""


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
    failed = [answer.reply for answer in answers if _has_failed(answer)]
    if failed:
        raise _site_error(failed)
    refused = _refusals(answers)
    members: dict[str, Member] = {}
    for answer in answers:
        if answer.reply.failure is not None:
            continue
        site, member = answer.reply.site, _member(answer)
        if site in members:
            raise HandshakeError(
                "two nodes say that they are this site; give every hospital its own name",
                site=site,
            )
        members[site] = member
    check_equal(members, config)
    check_sites(members, config)
    roster = Roster(members, refused)
    _tell(roster)
    return roster


def _ask_nodes(grid: Grid, config: RunConfig, tick: Callable[[], None] | None) -> list[SiteAnswer]:
    """Describe every node that is or comes online, until all of them and enough sites answered.

    A site whose policy does not allow the run counts as absent.

    A failure ends the wait: no later site mends it. Nodes that have not answered by then get
    `FAILURE_GRACE_SECONDS` more, since often several sites have the same thing to mend.
    """
    limits = config.federation
    query = NodeQuery(grid, config)
    answers: list[SiteAnswer] = []
    started = time.monotonic()
    failed_at: float | None = None
    while True:
        query.ask(grid.get_node_ids())
        for answer in query.poll():
            told = answer.sites()
            answers += told
            for site, failure in _refusals(told).items():
                warn(f"site {site} is left out: {failure.message}")
        failed = any(map(_has_failed, answers))
        if failed and failed_at is None:
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > FAILURE_GRACE_SECONDS:
            return answers
        enough = failed or len(answers) - len(_refusals(answers)) >= limits.min_sites
        # A last look: nodes may have come online while the first ones answered.
        if enough and not query.pending and not query.new(grid.get_node_ids()):
            return answers
        waited = time.monotonic() - started
        if not query.pending and not enough and waited > limits.connect_timeout:
            raise _too_few(answers, config, limits.connect_timeout, "connected")
        if waited > limits.connect_timeout + limits.handshake_timeout:
            if not enough:
                raise _too_few(answers, config, limits.handshake_timeout, "answered")
            warn(f"{query.pending} node(s) did not answer the handshake and are left out")
            return answers
        if tick is not None:
            tick()
        time.sleep(POLL_SECONDS)


def _too_few(
    answers: list[SiteAnswer], config: RunConfig, seconds: float, what: str
) -> FedappError:
    refused = _refusals(answers)
    there = sorted(answer.reply.site for answer in answers if answer.reply.site not in refused)
    said = "".join(f"; {failure.message}" for failure in refused.values())
    return MissingReplies(
        f"{len(there)} of at least {config.federation.min_sites} sites {what} within "
        f"{seconds:g} s (present: {', '.join(there) or 'none'}){said}; start the missing sites, or "
        "lower federation.min-sites",
    )


def _has_failed(answer: SiteAnswer) -> bool:
    failure = answer.reply.failure
    return failure is not None and failure.kind != PolicyRefused.__name__


def _refusals(answers: list[SiteAnswer]) -> dict[str, Failure]:
    """Return why each site that may not take part by its own policy says so."""
    replies = [answer.reply for answer in answers if not _has_failed(answer)]
    return {reply.site: reply.failure for reply in replies if reply.failure is not None}


def _site_error(failed: list[Reply]) -> FedappError:
    """Rebuild the first site's error, so that the run ends with its sentence and exit code.

    What other sites have to mend is told before, so that one run finds everything.
    """
    first = failed[0]
    kind = getattr(errors, first.failure.kind, None) if first.failure else None
    plain = isinstance(kind, type) and issubclass(kind, FedappError)
    error = kind if plain and kind is not errors.UpdateRefused else HandshakeError
    text = failure_text(first)
    same = [reply.site for reply in failed[1:] if failure_text(reply) == text]
    others = [reply for reply in failed[1:] if reply.site not in same]
    for reply in others:
        warn(f"site {reply.site}: {failure_text(reply)}")
    if same:
        text += f" (the same at {names(same)})"
    if others:
        text += f" (other problems at {names([reply.site for reply in others])}, see above)"
    # A node that cannot read its records at all may still know the site that they are of.
    where = None if text.startswith("site ") else first.site
    return error(text, site=where)  # type: ignore[misc]


def _member(answer: SiteAnswer) -> Member:
    description, offset = answer.description(), 0.0
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
