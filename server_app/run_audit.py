"""What the coordinator writes down of a run: who took part, what was merged, and who refused.

A site's own log (`fedapp site serve`) has the other half: the same digests of updates, and the same
refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from fedapp.audit import FILE, AuditLog
from fedapp.exchange import Action, Failure, Reply
from server_app.collect import Problem
from server_app.roster import Roster


class RunAudit:
    """The audit log in a run folder; a resumed run goes on in the same one. Use it with ``with``.

    Parameters
    ----------
    folder : Path
        Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def __enter__(self) -> Self:
        self._log = AuditLog(self._path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._log.close()

    def handshake(self, roster: Roster, run: str) -> None:
        """Write who takes part and who does not."""
        for site, failure in sorted(roster.refused.items()):
            self._refused(site, 0, Action.DESCRIBE, failure)
        self._log.record("began", run=run, sites=roster.sites)

    def round(
        self,
        round: int,
        asked: list[str],
        replies: Mapping[str, Reply],
        problems: Mapping[str, Problem],
    ) -> None:
        """Write which updates a round merged, by their SHA-256, and who refused."""
        self.refusals(round, Action.TRAIN, problems)
        updates = {
            site: {name: packed.layout.digest for name, packed in reply.payloads.items()}
            for site, reply in sorted(replies.items())
        }
        self._log.record("merged", round=round, asked=asked, updates=updates)

    def refusals(self, round: int, action: Action, problems: Mapping[str, Problem]) -> None:
        """Write which sites refused by their policy."""
        for site, problem in sorted(problems.items()):
            if problem.by_policy and problem.failure is not None:
                self._refused(site, round, action, problem.failure)

    def _refused(self, site: str, round: int, action: Action, failure: Failure) -> None:
        self._log.record(
            "refused",
            site=site,
            round=round,
            action=action.value,
            rule=failure.reason,
            message=failure.message,
        )
