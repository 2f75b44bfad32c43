"""Where the coordinator keeps what `fedapp provision` makes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedapp import atomic
from fedapp.errors import ProvisionError


@dataclass(frozen=True)
class Folder:
    """One consortium's folder.

    ``secrets`` is for its owner alone, the rest is public. The authority's key is needed only to
    sign: it may be kept elsewhere and be brought back for that.
    """

    path: Path

    @property
    def authority(self) -> Path:
        """The consortium's certificate, which everybody gets."""
        return self.path / "authority.pem"

    @property
    def superlink(self) -> Path:
        """The SuperLink's certificate."""
        return self.path / "superlink.pem"

    @property
    def authority_key(self) -> Path:
        """Its private key: who has it decides who is who."""
        return self.path / "secrets" / "authority.key"

    @property
    def superlink_key(self) -> Path:
        """The private key of the SuperLink's certificate."""
        return self.path / "secrets" / "superlink.key"

    @property
    def executor_secret(self) -> Path:
        """What the executor of ServerApps shows the SuperLink."""
        return self.path / "secrets" / "executor.secret"

    @property
    def members(self) -> Path:
        """What is known of each member."""
        return self.path / "members"

    def member(self, name: str) -> Path:
        """Request, certificate and SuperNode's public key of a member."""
        return self.members / name

    def kit(self, name: str) -> Path:
        """What a member gets."""
        return self.path / "kits" / name

    @contextmanager
    def held(self) -> Iterator[None]:
        """Work in the folder alone, making it if needed.

        Raises
        ------
        ProvisionError
            If another process does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ProvisionError(
                f"another `fedapp provision` works in {self.path}; wait until it has ended"
            ) from None
        finally:
            os.close(handle)


def put(path: Path, data: bytes) -> bool:
    """Write a public file unless it holds this already; return whether it was written."""
    if path.is_file() and path.read_bytes() == data:
        return False
    atomic.write_bytes(path, data)
    return True
