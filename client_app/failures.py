"""Why a site could not do what it was asked, in words that may leave the building."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from fedapp.errors import FedappError, TrainingError
from fedapp.exchange import Failure
from fedapp.text import clean

log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("client_app", "fedapp")
LONGEST = 2000
"""Most characters of a sentence that leaves."""


def to_failure(error: Exception, site: str, round: int) -> Failure:
    """Turn an error at ``site`` into what the coordinator is told.

    The message of a `FedappError` is written by us and safe. The text of any other exception may
    quote a patient record: only its class and place leave, the rest goes to this site's own log.
    """
    exhausted = _out_of_memory(error)
    if exhausted:
        log.error("site %s, round %d: out of memory", site, round, exc_info=error)
        error = TrainingError(exhausted)
    if isinstance(error, FedappError):
        where = error.round if error.round is not None else (round or None)
        sentence = str(FedappError(error.message, site=error.site or site, round=where))
        sentence = clean(sentence, LONGEST)  # it may quote the coordinator
        log.warning("%s: %s", type(error).__name__, sentence)
        return Failure(type(error).__name__, sentence, getattr(error, "reason", ""))
    log.error("site %s, round %d: unexpected error", site, round, exc_info=error)
    return Failure(
        "UnexpectedError",
        f"site {site}, round {round}: {type(error).__name__} at {_place(error)}; "
        "see the site's own log",
    )


def _out_of_memory(error: Exception) -> str:
    """Return what to do if that is what ``error`` says, else ""."""
    lower = "lower train.batch-size or train.eval-batch-size, or set "
    if type(error).__name__ == "OutOfMemoryError":  # torch's; this module loads no torch
        return f"the GPU ran out of memory; {lower}train.gradient-checkpointing = true"
    # torch has no class of its own for the CPU
    allocator = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or allocator:
        return (
            f"this process was given no more memory; {lower}train.threads = all cores, so that "
            "one site works at a time"
        )
    return ""


def _place(error: Exception) -> str:
    """``file:line`` of the innermost frame in our own code, else of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _PACKAGES:
            return f"{path.relative_to(_ROOT).as_posix()}:{frame.lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
