"""The numbers that a site reports beside its update, checked before anyone computes with them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NoReturn

from fedapp.errors import UpdateRefused
from fedapp.exchange import Metrics, Reply
from fedapp.tasks import TASKS

PHASES = ("received", "personal", "local-only")
SPLITS = ("validation", "test")
ROW_KEYS = frozenset({"round", "site", "phase", "split", "bytes_up", "bytes_down", "seconds"})
"""Keys of a row of ``metrics.jsonl`` that the coordinator fills in."""
LARGEST = 1e15
"""Largest magnitude of any number: sums over all sites and rounds stay far below overflow."""
MOST = 100
"""Most names in one table."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_KNOWN = {name: metric for info in TASKS.values() for name, metric in info.metrics.items()}
_METRICS = frozenset(name for info in TASKS.values() for name in info.reported)
_COUNTS = (_METRICS - _KNOWN.keys()) | {
    "steps",
    "seconds",
    "training_seconds",
    "evaluation_seconds",
}
# Undefined on no set of records, so that NaN here is a fault; elsewhere (auc) it says undefined.
_DEFINED = _COUNTS | {"accuracy", "loss", "token_accuracy"}


def check_reported(reply: Reply, task: str = "sequence-classification") -> Reply:
    """Return the reply without metrics that are undefined (NaN), or refuse it.

    A table of metrics is named ``phase/split`` with one of `PHASES` and `SPLITS`, and holds no
    others than the task's, see `fedapp.tasks.TASKS`. The name of a site's other number is a plain
    identifier that is no metric and no key of a row (`ROW_KEYS`; ``seconds`` is a cost of its own).
    Shares such as accuracy lie in [0, 1]; counts and seconds are not negative; nothing is
    infinite or larger than `LARGEST`; accuracy, loss, counts and seconds are not NaN.

    Parameters
    ----------
    reply : Reply
    task : str
        Value of ``model.task``.

    Raises
    ------
    UpdateRefused
        With the reason ``bad-metrics``, and a sentence that names the number.
    """

    def refuse(message: str) -> NoReturn:
        raise UpdateRefused(message, reason="bad-metrics", site=reply.site, round=reply.round)

    def checked(
        table: Mapping[str, float],
        where: str,
        reserved: frozenset[str],
        allowed: Collection[str] | None = None,
    ) -> Metrics:
        if len(table) > MOST:
            refuse(f"{where} hold at most {MOST} numbers, got {len(table)}")
        kept = {}
        for name, value in table.items():
            if not _NAME.fullmatch(name) or name in reserved:
                refuse(f"{where} hold {name!r:.80}, which cannot be the name of a number there")
            if allowed is not None and name not in allowed:
                refuse(f"{where} hold '{name}', expected of {task} only {', '.join(allowed)}")
            fault = _fault(name, value)
            if fault:
                refuse(f"'{name}' of {where} must be {fault}, got {value!r:.40}")
            if not math.isnan(value):
                kept[name] = value
        return kept

    metrics: dict[str, Metrics] = {}
    for key, table in reply.metrics.items():
        phase, _, split = key.partition("/")
        if phase not in PHASES or split not in SPLITS:
            refuse(
                f"there are metrics of {key!r:.80}; expected one of {', '.join(PHASES)}, "
                f"then / and one of {', '.join(SPLITS)}"
            )
        metrics[key] = checked(table, f"the metrics of {key}", ROW_KEYS, TASKS[task].reported)
    reserved = (ROW_KEYS | _METRICS) - {"seconds"}
    return replace(
        reply, metrics=metrics, numbers=checked(reply.numbers, "the site's numbers", reserved)
    )


def _fault(name: str, value: float) -> str:
    """Return what the number must be and is not; an empty string if it is all right."""
    if math.isnan(value):
        return "finite" if name in _DEFINED else ""
    if math.isinf(value):
        return "finite"
    metric = _KNOWN.get(name)
    if metric is not None and metric.is_share and not 0 <= value <= 1:
        return "between 0 and 1"
    if metric is not None and metric.least is not None and value < metric.least:
        return f"at least {metric.least:g}"
    if name in _COUNTS and value < 0:
        return "at least 0"
    return f"at most {LARGEST:g} in magnitude" if abs(value) > LARGEST else ""
