"""Where the command line keeps what belongs to one project: Flower's home, logs, locks."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedapp.errors import ConfigError


@dataclass(frozen=True)
class Home:
    """The private folder of one project; two projects never share one.

    Attributes
    ----------
    path : Path
        Below ``~/.fedapp/projects``, named after the project's own folder.
    """

    path: Path

    @classmethod
    def of(cls, project: Path) -> Home:
        """Return the home of the app in ``project``, creating it if needed.

        Raises
        ------
        ConfigError
            If it cannot be created, or the folder of the app has a name that is not Unicode.
        """
        project = project.resolve()
        try:
            name = str(project).encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"the folder of the app has a name that is not Unicode: {str(project)!r}; rename it"
            ) from None
        digest = hashlib.sha256(name).hexdigest()[:10]
        home = cls(shared_folder() / "projects" / f"{project.name or 'root'}-{digest}")
        try:
            for folder in (home.path, home.flower, home.neutral, home.logs):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"the folder {home.path} for Flower's own files cannot be created "
                f"({error.strerror}); give this account a writable home folder"
            ) from None
        return home

    @property
    def flower(self) -> Path:
        """``FLWR_HOME`` of this project's daemon and commands."""
        return self.path / "flower"

    @property
    def neutral(self) -> Path:
        """An empty working directory: Ray imports from it before it looks at the app's bundle."""
        return self.path / "empty"

    @property
    def logs(self) -> Path:
        """Unfiltered output of the latest runs."""
        return self.path / "logs"


def shared_folder() -> Path:
    """Return ``~/.fedapp``, which the first `Home` creates."""
    return Path.home() / ".fedapp"


class Busy(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the system releases it if this process dies.

    Raises
    ------
    Busy
        If ``wait`` is false and another process holds it; its text is that process's pid.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(os.read(handle, 32).decode(errors="replace").strip()) from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)
