"""A site's mailbox: what it wants published, and what its node has gathered for it.

Two folders a round on the site's own disk, each there as a whole or not at all. Whoever trains and
whoever runs the node need not be one process, nor the one that trained be the one that mixes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedapp.atomic_folder import write_folder
from fedapp.errors import SiteStateError
from fedapp.gossip.traffic import Traffic
from fedapp.paths import site_folder

T = TypeVar("T")

KEPT_ROUNDS = 2
_ROUND = re.compile(r"round-(\d{6,})")


@dataclass(frozen=True)
class Letter:
    """One site's model in one round, as it travels.

    Attributes
    ----------
    origin : str
    payload : bytes
        See `fedapp.peer_update`.
    terms : str
        Digest of what both sites must have alike; the layout digest of the envelope.
    codec : str
        Number format of the payload.
    digest : str
        Payload digest of the envelope; empty before there is one.
    """

    origin: str
    payload: bytes
    terms: str
    codec: str
    digest: str = ""


@dataclass(frozen=True)
class Delivery:
    """What a node has gathered for its site in a round.

    Attributes
    ----------
    letters : tuple of Letter
        Verified as their origins', sorted by origin; what they decode to is not.
    missing : tuple of str
        Neighbours of whom nothing came.
    own_digest : str
        Payload digest of what the site itself has published.
    degrees : mapping of str to int
        How many neighbours each site has.
    traffic : Traffic
        Of the node in this round, so far.
    """

    letters: tuple[Letter, ...]
    missing: tuple[str, ...] = ()
    own_digest: str = ""
    degrees: Mapping[str, int] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)


class Mailbox:
    """The mailbox of one site in one run.

    Parameters
    ----------
    folder : Path
        Private to the site.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, state_folder: Path, site: str, run: str) -> Mailbox:
        """Return the mailbox beside what the site keeps between its rounds."""
        return cls(site_folder(state_folder, site) / run / "mail")

    def send(self, round: int, letter: Letter) -> None:
        """Put in what the node is to publish; the same again if a round is repeated."""
        self._write("out", round, asdict(letter), {"payload": letter.payload})

    def outgoing(self, round: int) -> Letter | None:
        """Return what is to be published; None: nothing."""
        return self._read("out", round, _letter)

    def deliver(self, round: int, delivery: Delivery) -> None:
        """Put in what was gathered."""
        described = {**asdict(delivery), "letters": [asdict(one) for one in delivery.letters]}
        payloads = {f"payload-{n}": one.payload for n, one in enumerate(delivery.letters)}
        self._write("in", round, described, payloads)

    def received(self, round: int) -> Delivery | None:
        """Return what was gathered; None: nothing was delivered."""
        return self._read("in", round, _delivery)

    def _write(
        self, side: str, round: int, described: dict[str, Any], payloads: Mapping[str, bytes]
    ) -> None:
        def fill(folder: Path) -> None:
            for name, payload in payloads.items():
                (folder / name).write_bytes(payload)
            text = json.dumps(described, default=lambda value: None)  # payloads are files
            (folder / "letter.json").write_text(text, encoding="utf-8")

        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_folder(self.folder / side / f"round-{round:06d}", fill)
        except OSError as error:
            raise _unusable("written", error) from None
        self._forget(side, round)

    def _read(self, side: str, round: int, parse: Callable[[Path, dict[str, Any]], T]) -> T | None:
        folder = self.folder / side / f"round-{round:06d}"
        if not folder.is_dir():
            return None
        try:
            described = json.loads((folder / "letter.json").read_text(encoding="utf-8"))
            return parse(folder, described)
        except OSError as error:
            raise _unusable("read", error) from None
        except (ValueError, KeyError, TypeError):
            raise SiteStateError(
                f"{folder.name} of the site's mailbox is damaged; remove it and repeat the round"
            ) from None

    def _forget(self, side: str, round: int) -> None:
        for path in (self.folder / side).iterdir():
            match = _ROUND.fullmatch(path.name)
            if match and not round - KEPT_ROUNDS < int(match[1]) <= round:
                shutil.rmtree(path, ignore_errors=True)


def _letter(folder: Path, described: dict[str, Any]) -> Letter:
    return Letter(**{**described, "payload": (folder / "payload").read_bytes()})


def _delivery(folder: Path, described: dict[str, Any]) -> Delivery:
    letters = tuple(
        Letter(**{**one, "payload": (folder / f"payload-{number}").read_bytes()})
        for number, one in enumerate(described["letters"])
    )
    return Delivery(
        letters,
        tuple(described["missing"]),
        described["own_digest"],
        described["degrees"],
        Traffic(**described["traffic"]),
    )


def _unusable(what: str, error: OSError) -> SiteStateError:
    return SiteStateError(
        f"the site's mailbox cannot be {what} ({error.strerror or type(error).__name__}); make "
        "room in its state folder, and let the site read and write there"
    )
