"""The service's socket: a file that its owner and group may open, in a folder closed to others."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

from client_app.service.calls import target
from fedapp.errors import ConfigError

MODE = 0o660


def open_socket(server: Any, path: Path) -> None:
    """Let a gRPC server listen on ``path``.

    Raises
    ------
    ConfigError
        If the folder cannot be made, is somebody else's or open to everybody, or something else
        is there or listens there.
    """
    folder = path.parent
    try:
        folder.mkdir(mode=0o770, parents=True, exist_ok=True)
        check_folder(folder)
        _make_way(path)
        before = os.umask(0o777 & ~MODE)
        try:
            server.add_insecure_port(target(path))
        finally:
            os.umask(before)
        path.chmod(MODE)
    except OSError as error:
        raise ConfigError(
            f"the socket {path} cannot be made ({error.strerror}); give the service a folder that "
            "it may write, with the setting socket"
        ) from None
    except RuntimeError:
        raise ConfigError(
            f"the socket {path} cannot be opened; give the service a folder that it may write, "
            "with the setting socket"
        ) from None


def check_folder(folder: Path) -> None:
    """Check that nobody else can put a socket of their own in the place of the service's.

    Raises
    ------
    ConfigError
    """
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder}, for the socket, is no folder; name another one")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"the socket's folder {folder} belongs to user {status.st_uid}, and this service runs "
            f"as user {os.geteuid()}; chown it"
        )
    if status.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"the socket's folder {folder} may be written by everybody (mode "
            f"{stat.S_IMODE(status.st_mode):o}): whoever is on this machine could listen in the "
            f"site's place; chmod o-w {folder}"
        )


def _make_way(path: Path) -> None:
    """Remove the socket of a service that has ended."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} is there and is no socket; move it away, or name another one")
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(1.0)
        try:
            one.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"another service listens on {path}; end it first")
