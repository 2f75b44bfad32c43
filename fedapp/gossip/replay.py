"""What was accepted already: rounds only go up, and no nonce counts twice.

Kept on disk, so that a restart does not forget it. It need not remember for ever: an envelope is
void once it has expired.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedapp import atomic
from fedapp.errors import StoreError
from fedapp.gossip.envelope import Envelope

_NONCES_PER_ORIGIN = 1000
_LONGEST_FILE = 64 * 2**20


@dataclass
class _Origin:
    round: int = 0
    nonces: dict[str, int] = field(default_factory=dict)  # nonce -> expiry in ms


class ReplayGuard:
    """The newest accepted round and the nonces of every origin, for one run.

    `save` and `forget_expired` may be called from another thread.

    Parameters
    ----------
    run : str
    path : Path
        Where it is kept; a file of another run is forgotten.
    """

    def __init__(self, run: str, path: Path) -> None:
        self._run, self._path = run, path
        self._origins: dict[str, _Origin] = {}
        self._lock = threading.Lock()  # while another thread writes it down

    def load(self) -> None:
        """Read what an earlier process accepted.

        Raises
        ------
        StoreError
            If the file is there and cannot be trusted: without it old updates would count as new.
        """
        try:
            with self._path.open("rb") as stream:
                data = stream.read(_LONGEST_FILE)
            run, origins = _read(data)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise StoreError(
                f"{self._path} is damaged; without it an old update could be taken for a new one. "
                "Remove the folder of the store to begin anew"
            ) from None
        if run == self._run:
            self._origins = origins

    def save(self) -> None:
        """Write it to disk.

        Raises
        ------
        StoreError
        """
        with self._lock:
            origins = {name: asdict(origin) for name, origin in self._origins.items()}
        data = json.dumps({"run": self._run, "origins": origins}).encode()
        try:
            atomic.write_bytes(self._path, data, 0o600)
        except OSError as error:
            raise StoreError(
                f"{self._path} cannot be written: {error.strerror}; make room on the disk"
            ) from None

    def newest(self, origin: str) -> int:
        """Return the newest accepted round of ``origin``; 0: none."""
        return self._origins[origin].round if origin in self._origins else 0

    def check(self, envelope: Envelope) -> None:
        """Refuse what was accepted before, or is older than what was.

        Raises
        ------
        EnvelopeRefused
            "old-round", "second-update" or "replayed"
        """
        known = self._origins.get(envelope.origin)
        if known is None:
            return
        findings = {
            "replayed": (envelope.nonce in known.nonces, "its nonce was used before"),
            "second-update": (
                envelope.round == known.round,
                f"the origin signed two updates for round {envelope.round}, the first counts; two "
                "nodes may run under one name, stop one of them",
            ),
            "old-round": (
                envelope.round < known.round,
                f"the update is of round {envelope.round}, but one of round {known.round} of the "
                "same origin was accepted already",
            ),
        }
        envelope.refuse_if(findings)

    def admit(self, envelope: Envelope) -> None:
        """Remember an accepted envelope, see `check`."""
        self.check(envelope)
        self.note(envelope)

    def note(self, envelope: Envelope) -> None:
        """Remember an envelope whose update is in the store, accepted by an earlier process."""
        with self._lock:
            known = self._origins.setdefault(envelope.origin, _Origin())
            known.round = max(known.round, envelope.round)
            known.nonces[envelope.nonce] = envelope.expiry
            # An origin can push out its own nonces alone, and rounds still only go up.
            while len(known.nonces) > _NONCES_PER_ORIGIN:
                del known.nonces[next(iter(known.nonces))]

    def rewind(self, round: int) -> None:
        """Let updates of ``round`` and later come again, under new nonces."""
        for known in self._origins.values():
            known.round = min(known.round, round - 1)

    def withdraw(self, envelope: Envelope) -> None:
        """Undo `admit`: the update was lost before anybody used it, and may come again."""
        with self._lock:
            known = self._origins.get(envelope.origin)
            if known is not None and known.nonces.pop(envelope.nonce, None) is not None:
                known.round = min(known.round, envelope.round - 1)

    def forget_expired(self, now: float, skew: float) -> None:
        """Drop nonces of envelopes that are void anyway."""
        limit = int((now - skew) * 1000)
        with self._lock:
            for known in self._origins.values():
                known.nonces = {n: expiry for n, expiry in known.nonces.items() if expiry >= limit}


def _read(data: bytes) -> tuple[str, dict[str, _Origin]]:
    # By hand: an idle node has no other use for a library that would be a fifth of its memory.
    kept = json.loads(data)
    origins = {name: _Origin(**origin) for name, origin in kept["origins"].items()}
    for origin in origins.values():
        numbers = [origin.round, *origin.nonces.values()]
        if any(type(number) is not int for number in numbers) or origin.round < 0:
            raise ValueError("a round or a time is no number")
    if type(kept["run"]) is not str:
        raise ValueError("the run is no text")
    return kept["run"], origins
