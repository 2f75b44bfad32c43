"""What a node did with what it heard: one entry a round, appended and never changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedapp.errors import LedgerError
from fedapp.gossip.traffic import Traffic
from fedapp.hash_chain import HashChain, Link, read_chain
from fedapp.text import clean, shown, site_name

Name = Annotated[str, AfterValidator(site_name)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
_LONGEST_REASON = 500


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)


class Heard(_Record):
    """One peer's update, and what became of it.

    Attributes
    ----------
    origin : str
        Whose update it is, by its certificate.
    via : str
        From whom it came: another peer if it was forwarded; "" if it was never received whole.
    digest : str or None
        SHA-256 of the payload, hexadecimal; None if it was refused before it was known.
    size : int
        Bytes of the payload.
    scores : dict of str to float or None
        By name, for instance ``agreement``; None where one is not defined.
    accepted : bool
    reason : str
        Why it was refused, "" if it was accepted.
    weight : float
        Its share of the mix; 0 if it was refused.
    """

    origin: Name
    via: str = ""
    digest: Digest | None = None
    size: Count = 0
    scores: dict[str, float | None] = {}
    accepted: bool
    reason: Annotated[str, Field(max_length=_LONGEST_REASON)] = ""
    weight: Annotated[float, Field(ge=0, le=1)] = 0.0


class LedgerEntry(_Record):
    """One round of one node.

    Attributes
    ----------
    run, node : str
    round : int
    time : float
        When it was written, seconds since 1970 by this machine's clock.
    own_digest : str or None
        SHA-256 of what the node itself published, None if it published nothing.
    own_weight : float
        The share of its own model in the mix.
    heard : tuple of Heard
        Sorted by origin.
    missing : tuple of str
        Neighbours of whom nothing arrived before the deadline, sorted.
    traffic : Traffic
    """

    run: str
    node: Name
    round: Count
    time: float
    own_digest: Digest | None = None
    own_weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    heard: tuple[Heard, ...] = ()
    missing: tuple[Name, ...] = ()
    traffic: Traffic = Field(default_factory=Traffic)


class Ledger:
    """The entries of one node in one run, in a file of its own.

    A round that is repeated after a crash is recorded again; the newest entry of a round counts.

    Parameters
    ----------
    path : Path
        Made if it is not there.
    run, node : str
        Whose record it is.

    Raises
    ------
    LedgerError
        If the file is damaged, is of another run or node, or another process writes to it.
    """

    def __init__(self, path: Path, run: str, node: str) -> None:
        self.run, self.node = run, node
        self._chain = HashChain(path)
        try:
            for number, link in enumerate(read_chain(path), 1):
                self._refuse_other(_entry(path, number, link), number)
        except BaseException:
            self._chain.close()
            raise

    def record(
        self,
        round: int,
        heard: Iterable[Heard],
        *,
        time: float,
        missing: Iterable[str] = (),
        own_digest: str | None = None,
        own_weight: float = 1.0,
        traffic: Traffic | None = None,
    ) -> LedgerEntry:
        """Append what happened in a round; it is on the disk when this returns.

        Raises
        ------
        LedgerError
            If it says something impossible, a weight above 1 for instance.
        OSError
            If the disk is full; the file stays as it was.
        """
        try:
            entry = LedgerEntry(
                run=self.run,
                node=self.node,
                round=round,
                time=time,
                own_digest=own_digest,
                own_weight=own_weight,
                heard=tuple(sorted(heard, key=lambda one: one.origin)),
                missing=tuple(sorted(missing)),
                traffic=replace(traffic) if traffic else Traffic(),  # counting goes on
            )
        except ValidationError as error:
            raise LedgerError(
                f"the ledger takes no such entry: {_first(error)}", site=self.node, round=round
            ) from None
        self._chain.append(entry.model_dump(mode="json"))
        return entry

    @property
    def head(self) -> str:
        """Digest of the newest entry: who keeps it elsewhere finds any later change."""
        return self._chain.head

    @property
    def length(self) -> int:
        """Number of entries."""
        return self._chain.length

    def entries(self) -> list[LedgerEntry]:
        """Return all entries, oldest first, checked anew.

        Raises
        ------
        LedgerError
            If the file was damaged since.
        """
        return read_ledger(self._chain.path)

    def close(self) -> None:
        """Let the file go."""
        self._chain.close()

    def _refuse_other(self, entry: LedgerEntry, number: int) -> None:
        for field, expected, got in (
            ("run", self.run, entry.run),
            ("node", self.node, entry.node),
        ):
            if expected != got:
                raise LedgerError(
                    f"{self._chain.path}, line {number}, is of {field} {shown(got)}, expected "
                    f"{shown(expected)}; move the file away, or correct the {field}"
                )


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Return the entries of a ledger, oldest first, after checking every line.

    A last line that was cut short is left out: its writing was never confirmed.

    Raises
    ------
    LedgerError
        If a line was altered, removed, added or moved, or is no entry.
    FileNotFoundError
        If there is no such file.
    """
    return [_entry(path, number, link) for number, link in enumerate(read_chain(path), 1)]


def newest(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the newest entry of every round, in order of round."""
    return [entry for _, entry in sorted({entry.round: entry for entry in entries}.items())]


def _entry(path: Path, number: int, link: Link) -> LedgerEntry:
    try:
        return LedgerEntry.model_validate(link.body)
    except ValidationError as error:
        raise LedgerError(
            f"{path}, line {number}, is no entry of a gossip ledger: {_first(error)}; move the "
            "file away, or read it with the version of fedapp that wrote it"
        ) from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"field '{clean(field)}': {first['msg']}, got {shown(first['input'])}"
