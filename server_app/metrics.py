"""Rows of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from fedapp.exchange import Reply
from fedapp.tasks import FOLLOWED
from server_app.training_round import RoundResult

Row = dict[str, Any]

AVERAGED = ("gsnr",)
"""Begins of the names of sites' numbers whose mean is recorded every round."""


def site_rows(
    reply: Reply, round: int, *, bytes_up: int = 0, bytes_down: int = 0, skip: Iterable[str] = ()
) -> Iterator[Row]:
    """Yield one row per phase and split that the site evaluated.

    Bytes and seconds are those of the whole exchange and stand in each of its rows. Bytes are
    those of the payloads (the adapters): layouts, settings, metrics and Flower's own are not in
    them. Rows of the site's own training also hold what it reports of it (``train_loss``,
    ``steps``, ...).

    Parameters
    ----------
    reply : Reply
        Checked by `fedapp.reported.check_reported`.
    round : int
        For the final test, the number of rounds.
    bytes_up, bytes_down : int
    skip : iterable of str
        Keys ``phase/split`` to leave out.
    """
    numbers = {key: value for key, value in reply.numbers.items() if key != "seconds"}
    for key, metrics in sorted(reply.metrics.items()):
        phase, _, split = key.partition("/")
        if key in set(skip):
            continue
        known = {"round": round, "site": reply.site, "phase": phase, "split": split}
        costs = {
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "seconds": reply.numbers.get("seconds", 0.0),
        }
        reported = {**(numbers if phase != "received" else {}), **metrics}
        # What the coordinator knows comes first for the reader, and again last, so that it stands.
        yield {**known, **reported, **costs, **known}


def round_rows(result: RoundResult, round: int, seconds: float) -> list[Row]:
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
    return [*rows, federation_row(result, round, seconds)]


def federation_row(result: RoundResult, round: int, seconds: float) -> Row:
    """Return the federation's row.

    ``accuracy``, ``loss`` and what else is followed of the task (`fedapp.tasks.TaskInfo`) are means
    over the sites of the personal models on the validation split, ``received_accuracy`` and so on
    those of the model that the round began with. What a site reports beside the metrics is averaged
    where its name begins as `AVERAGED` says.
    """
    replies = result.replies.values()
    personal = [reply.metrics.get("personal/validation", {}) for reply in replies]
    received = [reply.metrics.get("received/validation", {}) for reply in replies]
    reported = [reply.numbers for reply in replies]
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
