"""What a site reports of a round as rows of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from fedapp.exchange import Reply

Row = dict[str, Any]


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


def join_halves(trained: Reply, mixed: Reply) -> Reply:
    """Return one reply for both halves of a round without a server; times add up."""
    numbers = {**trained.numbers, **mixed.numbers}
    numbers["seconds"] = trained.numbers.get("seconds", 0.0) + mixed.numbers.get("seconds", 0.0)
    return replace(trained, metrics={**trained.metrics, **mixed.metrics}, numbers=numbers)
