"""Files that somebody else wrote and that cannot be long."""

from __future__ import annotations

from pathlib import Path

from fedapp.errors import FedappError


def read_small(path: Path, most: int, what: str, error: type[FedappError]) -> bytes:
    """Return the content of a file of at most ``most`` bytes; no more is ever in memory.

    Parameters
    ----------
    path : Path
    most : int
    what : str
        What the file is, for the sentence: ``"certificate"``.
    error : type of FedappError
        What is raised if it is not there, cannot be read or is longer.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except FileNotFoundError:
        raise error(f"the {what} {path} does not exist; name the right file") from None
    except OSError as problem:
        raise error(f"the {what} {path} cannot be read: {problem.strerror}") from None
    if len(data) > most:
        raise error(f"the {what} {path} has more than {most} bytes; name the right file")
    return data
