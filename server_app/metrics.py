"""Rows of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean

from fedapp.site_rows import Row, site_rows
from fedapp.tasks import FOLLOWED
from server_app.training_round import RoundResult

__all__ = ["AVERAGED", "Row", "federation_row", "round_rows", "site_rows"]

AVERAGED = ("gsnr",)
"""Begins of the names of sites' numbers whose mean is recorded every round."""


def round_rows(
    result: RoundResult, round: int, seconds: float, faulty: Collection[str] = ()
) -> list[Row]:
    """Return the rows of a training round: each site's, sorted by name, then the federation's.

    The received model's test metrics are left out: the test is for the final model.
    """
    rows: list[Row] = []
    for site, reply in sorted(result.replies.items()):
        rows += site_rows(
            reply,
            round,
            bytes_up=result.bytes_up.get(site, 0),
            bytes_down=result.bytes_down.get(site, 0),
            skip=("received/test",),
        )
    return [*rows, federation_row(result, round, seconds, faulty)]


def federation_row(
    result: RoundResult, round: int, seconds: float, faulty: Collection[str] = ()
) -> Row:
    """Return the federation's row.

    ``accuracy``, ``loss`` and what else is followed of the task (`fedapp.tasks.TaskInfo`) are means
    over the sites, without ``faulty`` ones, of the personal models on the validation split,
    ``received_accuracy`` and so on those of the model that the round began with. What a site
    reports beside the metrics is averaged where its name begins as `AVERAGED` says.
    """
    replies = result.replies.values()
    honest = [reply for site, reply in result.replies.items() if site not in faulty]
    personal = [reply.metrics.get("personal/validation", {}) for reply in honest]
    received = [reply.metrics.get("received/validation", {}) for reply in honest]
    reported = [reply.numbers for reply in honest]
    before = _mean(received, FOLLOWED)
    return {
        "round": round,
        "site": None,
        "phase": "federation",
        **_mean(personal, FOLLOWED),
        **_mean(reported, sorted(n for n in set().union(*reported) if n.startswith(AVERAGED))),
        **{f"received_{name}": value for name, value in before.items()},
        "examples": sum(int(metrics.get("examples", 0)) for metrics in personal),
        "bytes_up": sum(result.bytes_up.values()),
        "bytes_down": sum(result.bytes_down.values()),
        "seconds": seconds,
        "training_seconds": sum(r.numbers.get("training_seconds", 0.0) for r in replies),
        "replies": len(result.replies),
        "retries": result.retries,
        "missing": {site: problem.kind for site, problem in sorted(result.problems.items())},
        **result.diagnostics,
    }


def _mean(rows: Iterable[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    table = list(rows)
    means = {}
    for name in names:
        values = [row[name] for row in table if name in row]
        if values:
            means[name] = fmean(values)
    return means
