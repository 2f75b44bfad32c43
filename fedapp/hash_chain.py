"""A record that only grows: JSON lines, each with the digest of the one before it.

A line that was altered, removed, added or moved is found. Lines cut off the end are not, and
whoever may write the file can write all of it anew: keep the newest digest (`HashChain.head`)
elsewhere, in a log or on paper, and compare.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedapp.atomic import sync_folder
from fedapp.errors import LedgerError

GENESIS = "0" * 64
"""What the first line follows."""
LONGEST_LINE = 16 * 2**20  # bytes; more is no line of ours, and is never read into memory
_BEGINNING = b'{"body":{'


class Link(NamedTuple):
    """One line: what it says, its digest, and where it ends in the file, in bytes."""

    body: dict[str, Any]
    digest: str
    end: int


class HashChain:
    """Appends to one file; no second process can at the same time.

    A last line that was cut short, by a kill or a power cut, was never confirmed to anybody: it is
    dropped when the file is opened, unless nothing but its end of line is missing.

    Parameters
    ----------
    path : Path
        Made if it is not there.

    Attributes
    ----------
    head : str
        Digest of the newest line.
    length : int
        Number of lines.

    Raises
    ------
    LedgerError
        If the file is damaged, or another process appends to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head, self.length, self._end = GENESIS, 0, 0
        new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            for link in read_chain(path):
                self.head, self.length, self._end = link.digest, self.length + 1, link.end
            self._mend_end()
            if new:
                sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def append(self, body: Mapping[str, Any]) -> str:
        """Add one line durably and return its digest.

        If the disk is full the file stays as it was, and later lines may follow.

        Raises
        ------
        OSError
            If it cannot be written.
        ValueError
            If ``body`` holds what JSON cannot, a NaN for instance, or is too long for a line.
        """
        digest = _digest(self.head, body)
        line = _line(self.head, digest, body) + b"\n"
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line has at most {LONGEST_LINE} bytes, got {len(line)}")
        try:
            self._write(line)
        except OSError:
            self._cut()
            raise
        self.head, self.length, self._end = digest, self.length + 1, self._end + len(line)
        return digest

    def close(self) -> None:
        """Let the file go; nothing is lost, since every line is on the disk."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"{self.path} is written by another process; end that one, or give this one a "
                "folder of its own"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                raise  # otherwise a file system without locks

    def _mend_end(self) -> None:
        """Leave whole lines alone."""
        if os.fstat(self._handle).st_size != self._end:
            self._cut()
        if self._end and os.pread(self._handle, 1, self._end - 1) != b"\n":
            self._write(b"\n")
            self._end += 1

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._handle, line[written:], self._end + written)
        os.fsync(self._handle)

    def _cut(self) -> None:
        os.ftruncate(self._handle, self._end)
        os.fsync(self._handle)


def read_chain(path: Path) -> Iterator[Link]:
    """Yield every line, oldest first, after checking it; memory for one line is taken at a time.

    Raises
    ------
    LedgerError
        If a line was altered, removed, added or moved. A last line that was cut short is
        left out.
    FileNotFoundError
        If there is no such file.
    """
    head, end = GENESIS, 0
    with path.open("rb") as stream:
        for number, line in enumerate(_lines(stream), 1):
            if len(line) > LONGEST_LINE:
                raise _damaged(path, number, f"is longer than {LONGEST_LINE} bytes")
            try:
                link = _check(path, number, line, head)
            except LedgerError:
                if not _is_cut(line):
                    raise
                return
            head, end = link.digest, end + len(line)
            yield link._replace(end=end)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(LONGEST_LINE + 1):
        yield line


def _is_cut(line: bytes) -> bool:
    """Whether it may be the beginning of a line of ours; a power cut may leave zeros in its place.

    A file of something else is not emptied.
    """
    whole = line.endswith(b"\n")
    return not whole and (
        line[: len(_BEGINNING)] == _BEGINNING[: len(line)] or not line.strip(b"\0")
    )


def _check(path: Path, number: int, line: bytes, head: str) -> Link:
    try:
        found = json.loads(line)
        previous, digest, body = found["previous"], found["digest"], found["body"]
        # As it was written, to the byte: of a name that comes twice readers see different values.
        same = isinstance(body, dict) and line.removesuffix(b"\n") == _line(previous, digest, body)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, number, "is no line of a ledger") from None
    if not same:
        raise _damaged(path, number, "is not as it was written")
    if previous != head:
        raise _damaged(path, number, "does not follow the line before: lines were removed or added")
    if digest != _digest(previous, body):
        raise _damaged(path, number, "was altered: its digest is of other content")
    return Link(body, digest, 0)


def _damaged(path: Path, number: int, what: str) -> LedgerError:
    return LedgerError(
        f"{path}, line {number}, {what}; restore the file from a backup, or move it away to begin "
        "a new one"
    )


def _digest(previous: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(previous.encode() + b"\n" + _json(body)).hexdigest()


def _line(previous: str, digest: str, body: Mapping[str, Any]) -> bytes:
    return _json({"previous": previous, "digest": digest, "body": body})


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()
