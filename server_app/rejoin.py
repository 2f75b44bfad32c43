"""Before a round is repeated: give a site that went away the time to come back."""

from __future__ import annotations

import time
from dataclasses import replace

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

from fedapp.config import RunConfig
from fedapp.errors import WireError
from fedapp.exchange import Action, Reply, SiteDescription
from fedapp.wire import MESSAGE_TYPES, content_to_descriptions, describe_to_content
from server_app.collect import POLL_SECONDS, TTL_MARGIN_SECONDS, Tick, collect_messages
from server_app.log import log, names, warn
from server_app.roster import Roster

# What may differ between two descriptions of one site: time, and remarks for the reader.
_MAY_DIFFER = {"clock", "notes", "device"}


def wait_for_sites(
    grid: Grid, roster: Roster, sites: list[str], config: RunConfig, tick: Tick | None = None
) -> None:
    """Wait until the nodes of ``sites`` are online, at most ``federation.connect-timeout``.

    Flower reports a node that is offline at once, so that without a pause every repeat of a round
    would be used up before a restarted site is back. A site that comes back under another node id
    is accepted if it describes itself as before.
    """
    deadline = time.monotonic() + config.federation.connect_timeout
    refused: set[int] = set()
    told = False
    while True:
        online = set(grid.get_node_ids())
        absent = [site for site in sites if roster.nodes[site] not in online]
        new = sorted(online - set(roster.nodes.values()) - refused)
        if not absent:
            return
        if new:
            refused |= set(new) - _take_back(grid, roster, absent, new, config, tick)
            continue
        if time.monotonic() >= deadline:
            warn(f"{names(absent)} did not come back")
            return
        if not told:
            log(f"waiting up to {config.federation.connect_timeout:g} s for {names(absent)}")
            told = True
        if tick is not None:
            tick()
        time.sleep(POLL_SECONDS)


def _take_back(
    grid: Grid,
    roster: Roster,
    absent: list[str],
    nodes: list[int],
    config: RunConfig,
    tick: Tick | None,
) -> set[int]:
    """Ask new nodes who they are; return those that host an absent site again."""
    content, timeout = describe_to_content(config), config.federation.handshake_timeout
    messages = [
        Message(
            content=content,
            dst_node_id=node,
            message_type=MESSAGE_TYPES[Action.DESCRIBE],
            ttl=timeout + TTL_MARGIN_SECONDS,
            group_id="0",
        )
        for node in nodes
    ]
    answers, _ = collect_messages(grid, messages, timeout, tick)
    taken = set()
    for message in messages:
        answer = answers.get(message.metadata.message_id)
        for reply in _descriptions(answer):
            if reply.site in absent and _is_same(reply, roster):
                node = message.metadata.dst_node_id
                member = roster.members[reply.site]
                roster.members[reply.site] = replace(member, node_id=node)
                log(f"site {reply.site} is back")
                taken.add(node)
    return taken


def _descriptions(answer: Message | None) -> list[Reply]:
    if answer is None or answer.has_error():
        return []
    try:
        return content_to_descriptions(answer.content)
    except WireError as error:
        warn(f"a new node is left out: {error}")
        return []


def _is_same(reply: Reply, roster: Roster) -> bool:
    if reply.failure is not None:
        warn(f"site {reply.site} is not taken back: {reply.failure.message}")
        return False
    try:
        description = SiteDescription.model_validate(reply.description)
    except ValidationError:
        warn(f"site {reply.site} is not taken back: its description is malformed")
        return False
    before = roster.members[reply.site].description.model_dump(exclude=_MAY_DIFFER)
    now = description.model_dump(exclude=_MAY_DIFFER)
    different = sorted(key for key in before if before[key] != now[key])
    if different:
        warn(f"site {reply.site} is not taken back: its {different[0]} changed")
    return not different
