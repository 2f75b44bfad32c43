"""Who belongs to the consortium, where each listens, and which of them this node hears.

Names come from the consortium file and never change. An address may: a peer that restarts elsewhere
tells its new one in its own calls, which its certificate vouches for. Liveness is this node's own
judgement, by its own calls; what others think of a peer is neither asked nor told.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fedapp.errors import ConfigError
from fedapp.text import clean, site_name

_ADDRESS = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:]{2,45}\]):([0-9]{1,5})"
)


def is_address(text: str, *, least_port: int = 1) -> bool:
    """Whether ``text`` is HOST:PORT, HOST a name, an IPv4 address or an IPv6 one in brackets."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and least_port <= int(match.group(1)) <= 65535


@dataclass(frozen=True)
class Member:
    """One line of the consortium file.

    Attributes
    ----------
    name : str
        As in the site's certificate.
    address : str
        HOST:PORT; empty: not known until the peer calls.
    """

    name: str
    address: str = ""

    def __post_init__(self) -> None:
        try:
            site_name(self.name)
        except ValueError as error:
            raise ConfigError(f"the consortium file: {error}") from None
        if self.address and not is_address(self.address):
            raise ConfigError(
                f"the consortium file: the address of '{self.name}' must be HOST:PORT, got "
                f"'{clean(self.address)}'"
            )


@dataclass
class Standing:
    """What this node knows of a peer by its own calls.

    Attributes
    ----------
    name, address : str
    heard : float or None
        When the peer last answered; seconds of the monotonic clock.
    problem : str
        Why the last call failed; empty: it did not.
    failures : int
        Failed calls since it was last heard.
    clock_offset : float or None
        How far the peer's clock is ahead of this one's, in seconds.
    round : int
        The round that the peer last asked for.
    since : float
        When it first asked for that; seconds of the monotonic clock.
    """

    name: str
    address: str
    heard: float | None = None
    problem: str = ""
    failures: int = 0
    clock_offset: float | None = None
    round: int = 0
    since: float = 0.0


class Membership:
    """The peers of one node.

    Parameters
    ----------
    own : str
        This node's name, which is left out.
    members : iterable of Member
    dead_after : float
        Seconds of silence after which a peer counts as dead.

    Raises
    ------
    ConfigError
        If a name occurs twice, or this node's own is missing.
    """

    def __init__(
        self,
        own: str,
        members: Iterable[Member],
        dead_after: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        members = list(members)
        names = [member.name for member in members]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the consortium file has two peers with the name '{twice[0]}'; a name and its "
                "certificate belong to one site"
            )
        if own not in names:
            raise ConfigError(
                f"the consortium file has no site '{clean(own)}', which this node's certificate is "
                "for"
            )
        self.own, self.names = own, frozenset(names)
        self._peers = {m.name: Standing(m.name, m.address) for m in members if m.name != own}
        self._dead_after, self._monotonic = dead_after, monotonic
        self._start = monotonic()

    def __iter__(self) -> Iterator[Standing]:
        return iter(self._peers.values())

    def __getitem__(self, name: str) -> Standing:
        return self._peers[name]

    def begin(self) -> None:
        """Count silence from now on."""
        self._start = self._monotonic()

    def heard(self, name: str) -> None:
        """The peer has answered."""
        peer = self._peers[name]
        peer.heard, peer.failures, peer.problem = self._monotonic(), 0, ""

    def failed(self, name: str, problem: str) -> None:
        """A call to the peer failed."""
        peer = self._peers[name]
        peer.failures += 1
        peer.problem = problem

    def move(self, name: str, address: str) -> bool:
        """Note where the peer listens now; return whether that is new.

        Only what the peer's own certificate vouches for, or the consortium file, may come here.
        """
        peer = self._peers[name]
        if not is_address(address) or peer.address == address:
            return False
        peer.address = address
        return True

    def asked(self, name: str, round: int) -> None:
        """The peer has asked for updates of ``round``."""
        peer = self._peers[name]
        if peer.round != round:
            peer.round, peer.since = round, self._monotonic()

    def beyond(self, name: str, round: int, seconds: float) -> bool:
        """Whether the peer has been in a later round than ``round`` for so long.

        Rounds only go up: what it has not offered of ``round`` by then, it will not publish.
        """
        peer = self._peers[name]
        return peer.round > round and self._monotonic() - peer.since > seconds

    def alive(self, name: str) -> bool:
        """Whether the peer was heard recently; until it had the time to be, it counts as alive."""
        last = self._peers[name].heard
        return self._monotonic() - max(last or 0.0, self._start) <= self._dead_after
