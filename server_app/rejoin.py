"""Before a round is repeated: give a site that went away the time to come back."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from flwr.serverapp import Grid

from fedapp.config import RunConfig
from fedapp.errors import FedappError, HandshakeError
from server_app.collect import POLL_SECONDS, Tick, failure_text
from server_app.descriptions import NodeAnswer, NodeQuery, SiteAnswer
from server_app.log import log, names, warn
from server_app.roster import Roster

# What may differ between two descriptions of one site: time, and remarks for the reader.
_MAY_DIFFER = {"clock", "notes", "device"}


def wait_for_sites(
    grid: Grid, roster: Roster, sites: list[str], config: RunConfig, tick: Tick | None = None
) -> None:
    """Wait until the nodes of ``sites`` are online again.

    At most ``federation.connect-timeout``, and ``federation.handshake-timeout`` more only while a
    new node has been asked who it is and has not answered. Flower reports a node that is offline at
    once, so that without a pause every repeat of a round would be used up before a restarted site
    is back. A site that comes back under another node id is accepted if it describes itself as
    before.
    """
    limits = config.federation
    started, told = time.monotonic(), False
    query = NodeQuery(grid, config)
    while True:
        online = set(grid.get_node_ids())
        query.ask(online - set(roster.nodes.values()))
        for answer in query.poll():
            _take_back(roster, answer, online)
        absent = [site for site in sites if roster.nodes[site] not in online]
        if not absent:
            return
        waited = time.monotonic() - started
        limit = limits.connect_timeout + (limits.handshake_timeout if query.pending else 0.0)
        if waited >= limit:
            warn(f"{names(absent)} did not come back")
            return
        if not told:
            log(f"waiting up to {limits.connect_timeout:g} s for {names(absent)}")
            told = True
        if tick is not None:
            tick()
        time.sleep(POLL_SECONDS)


def _take_back(roster: Roster, answer: NodeAnswer, online: Collection[int]) -> None:
    """Give every site of the roster that has lost its node, and is at this one, the new node."""
    try:
        found = answer.sites()
    except FedappError as error:
        warn(f"a new node is left out: {error}")
        return
    for site_answer in found:
        site = site_answer.reply.site
        member = roster.members.get(site)
        if member is None or member.node_id in online:
            continue
        try:
            _check_same(site_answer, roster)
        except HandshakeError as error:
            warn(f"site {site} is not taken back: {error.message}")
        else:
            roster.members[site] = replace(member, node_id=answer.node_id)
            log(f"site {site} is back")


def _check_same(answer: SiteAnswer, roster: Roster) -> None:
    if answer.reply.failure is not None:
        raise HandshakeError(failure_text(answer.reply))
    now = answer.description().model_dump(exclude=_MAY_DIFFER)
    before = roster.members[answer.reply.site].description.model_dump(exclude=_MAY_DIFFER)
    different = sorted(key for key in before if before[key] != now[key])
    if different:
        raise HandshakeError(f"its {different[0]} changed")
