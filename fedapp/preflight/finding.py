"""One finding of a check: what was looked at, how it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from fedapp.errors import FedappError


class Status(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"  # not asked for, or of no use after what failed before


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes
    ----------
    check : str
        A stable name.
    status : Status
    detail : str
        What was found, in a sentence.
    advice : str
        What to do; empty if all is well.
    """

    check: str
    status: Status
    detail: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def attempt(check: str, look: Callable[[], Finding]) -> Finding:
    """Return what ``look`` finds; a `FedappError` is a failure with its sentence."""
    try:
        return look()
    except FedappError as error:
        finding, _, advice = str(error).partition("; ")
        return Finding(check, Status.FAILED, finding, advice)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether something must be mended."""
    return any(finding.status is Status.FAILED for finding in findings)
