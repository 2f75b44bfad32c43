"""What a node is started with, in plain words: checked before, and read without pydantic."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from fedapp.gossip.membership import Member

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection


@dataclass(frozen=True)
class Start:
    """A site's and the consortium's files in one, see `fedapp.config_peer.PeerConfig`.

    Attributes
    ----------
    certificate, key, authority, store : str
        Absolute paths.
    listeners : tuple of str
        Who asks this site, so that it is told where this site listens.
    members : tuple of Member
        Every site of the consortium, this one included.
    neighbours, origins : tuple of str
        Whom this site asks, and whose updates it wants.
    gossip : dict
        ``GossipSection.plain()``.
    settings_file, state : str
        Of a site that trains: the run's settings, and the folder for what it keeps. Empty: it
        trains nothing.
    degrees : dict of str to int
        How many neighbours each site has.
    """

    name: str
    run: str
    certificate: str
    key: str
    authority: str
    store: str
    listen: str
    announce: str
    listeners: tuple[str, ...]
    status_interval: float
    members: tuple[Member, ...]
    neighbours: tuple[str, ...]
    origins: tuple[str, ...]
    gossip: dict[str, Any]
    settings_file: str = ""
    state: str = ""
    degrees: dict[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> GossipSection:
        """The settings of the gossip layer."""
        return cast("GossipSection", SimpleNamespace(**self.gossip))

    def to_json(self) -> str:
        """Return it as text for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Start:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        fields["members"] = tuple(Member(**member) for member in fields["members"])
        for name in ("listeners", "neighbours", "origins"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    def path(self, what: str) -> Path:
        """Return one of the paths."""
        return Path(getattr(self, what))
