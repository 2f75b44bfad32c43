"""Rows of metrics.jsonl say who and when, whatever a site reports."""

from __future__ import annotations

from fedapp.exchange import Action, Reply
from fedapp.reported import ROW_KEYS
from server_app.metrics import site_rows


def test_what_a_site_reports_cannot_replace_what_the_coordinator_knows() -> None:
    forged = dict.fromkeys(ROW_KEYS, 99.0)
    reply = Reply(
        "Basel",
        7,
        Action.TRAIN,
        metrics={"personal/test": {"accuracy": 0.5, **forged}},
        numbers={"steps": 3.0, **forged, "seconds": 2.0},
    )

    (row,) = site_rows(reply, 4, bytes_up=10, bytes_down=20)

    assert row == {
        "round": 4,
        "site": "Basel",
        "phase": "personal",
        "split": "test",
        "accuracy": 0.5,
        "steps": 3.0,
        "bytes_up": 10,
        "bytes_down": 20,
        "seconds": 2.0,
    }
    assert list(row)[:4] == ["round", "site", "phase", "split"]
