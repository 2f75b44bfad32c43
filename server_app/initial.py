"""The model before round 1: every site derives the same one from the seed, and one sends it."""

from __future__ import annotations

from flwr.serverapp import Grid

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.errors import FedappError, HandshakeError
from fedapp.exchange import Action, Instruction
from server_app.collect import Collected, Tick, collect
from server_app.log import warn
from server_app.packer import site_config
from server_app.roster import Roster


def fetch_initial(
    grid: Grid, config: RunConfig, roster: Roster, tick: Tick | None = None
) -> tuple[Adapter, int]:
    """Fetch the seeded adapter from the first site that sends it as its digest promises.

    Returns
    -------
    adapter : Adapter
    received : int
        Bytes of the payloads that came, refused ones included.

    Raises
    ------
    HandshakeError
        If no site sends it, with every site's reason.
    """
    problems, received = [], 0
    for site in roster.sites:
        instruction = Instruction(Action.INITIAL, site, site_config(config))
        timeout = config.federation.handshake_timeout
        got = collect(grid, [instruction], roster.nodes, timeout, tick)
        received += got.bytes_up.get(site, 0)
        try:
            return _verified(got, site, roster), received
        except FedappError as error:
            warn(str(error))
            problems.append(str(error))
    raise HandshakeError(f"no site sent the initial adapter: {'; '.join(problems)}")


def _verified(got: Collected, site: str, roster: Roster) -> Adapter:
    if site in got.problems:
        raise HandshakeError(got.problems[site].reason, site=site)
    packed = got.replies[site].payloads.get("adapter")
    if packed is None:
        raise HandshakeError("the reply holds no initial adapter", site=site)
    adapter, expected = packed.unpack(), roster.reference.initial_digest
    if adapter.digest() != expected:
        raise HandshakeError(
            f"the initial adapter has digest {adapter.digest()}, expected {expected} as all sites "
            "announced",
            site=site,
        )
    return adapter
