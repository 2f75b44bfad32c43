"""Where a run keeps what its sites' nodes carry, and the ledgers that its report shows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fedapp.atomic import write_bytes
from fedapp.config import RunConfig
from fedapp.mailbox import Mailbox
from fedapp.paths import site_folder
from fedapp.results import RunFolder
from server_app.log import warn

if TYPE_CHECKING:
    from fedapp.gossip.post import Post


def post_of(folder: RunFolder, run: str, sites: Collection[str], config: RunConfig) -> Post:
    """Return the nodes of the sites of a simulated run."""
    from fedapp.gossip.post import Post  # with gRPC, which no other method needs here

    return Post(
        sites,
        run,
        folder.path / "post",
        lambda site: Mailbox.of(folder.sites, site, run),
        config,
    )


def show_ledgers(folder: RunFolder, run: str, sites: Collection[str]) -> None:
    """Copy the sites' ledgers to where the report finds them."""
    for site in sites:
        kept = site_folder(folder.sites, site) / run / "ledger.jsonl"
        shown = site_folder(folder.ledger, site).with_suffix(".jsonl")
        try:
            if kept.is_file():
                write_bytes(shown, kept.read_bytes())
        except OSError as error:
            warn(f"site {site}: its ledger is not in the report: {error.strerror or error}")
