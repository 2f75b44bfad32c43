"""The sites of a run and what they said of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedapp.exchange import Failure, SiteDescription


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
    refused : mapping of str to Failure, optional
        Sites that take no part because their own policy does not allow it, and what they said.
    """

    def __init__(
        self, members: dict[str, Member], refused: Mapping[str, Failure] | None = None
    ) -> None:
        self.members = dict(sorted(members.items()))
        self.refused = dict(refused or {})

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

    def training_records(self, site: str) -> int:
        """Return how many training records the site announced."""
        return self.members[site].description.examples.get("train", 0)

    def largest_first(self, sites: list[str]) -> list[str]:
        """Order sites by training records, most first, so that parallel workers end together."""

        def key(site: str) -> tuple[int, str]:
            return -self.training_records(site), site

        return sorted(sites, key=key)

    def digests(self) -> dict[str, Any]:
        """What a resumed run must find again."""
        first = self.reference
        return {
            "base model": first.base_model_digest,
            "adapter layout": first.layout_digest,
            "initial adapter": first.initial_digest,
            "label map": list(first.label_map),
            "torch version": first.torch_version.partition("+")[0],
            "threads": first.threads,
            "dtype": first.dtype,
            "records": {
                site: dict(sorted(member.description.examples.items()))
                for site, member in self.members.items()
            },
            "data digest": {
                site: member.description.data_digest
                for site, member in self.members.items()
                if member.description.data_digest
            },
        }
