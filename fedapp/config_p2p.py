"""The settings of methods in which sites exchange their models without a server."""

from __future__ import annotations

from fedapp.config_section import Section, setting
from fedapp.gossip.topology import Topology


class P2pSection(Section):
    """What all such methods share."""

    topology: Topology = setting(
        "full", "whose models a site gets; `fedapp peer` has it from the consortium's file"
    )
    degree: int = setting(4, "neighbours of every site in topology k-regular", ge=1, le=10**6)
    records: int = setting(
        256,
        "most validation records of a site on which models are compared",
        "records",
        ge=1,
        le=10**6,
    )
    rows: int = setting(
        256,
        "most rows of them, where a model answers for tokens or pixels: drawn among all",
        ge=1,
        le=8192,
    )
    minimum: int = setting(
        0, "fewest models of others that a round needs; 0: a site goes on alone", "models", ge=0
    )
    gather_timeout: float = setting(
        600.0, "longest wait for the neighbours' models of a round", "s", gt=0, le=1e6
    )
