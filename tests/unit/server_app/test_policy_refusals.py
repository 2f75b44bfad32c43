"""A site whose own policy says no takes no part, is named and written down, and ends no run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_federation import FakeGrid

from fedapp.audit import verify
from fedapp.config import RunConfig
from fedapp.errors import MissingReplies
from fedapp.exchange import Action, Failure, Instruction, Reply
from fedapp.hash_chain import read_chain
from fedapp.results import RunFolder
from server_app.handshake import shake_hands

Finished = Callable[..., RunFolder]
Settings = Callable[..., RunConfig]


def refuses(asked: Instruction, reply: Reply) -> Reply:
    sentence = f"site {asked.site}: refused by this site's rule 'hours': work begins at night"
    failure = Failure("PolicyRefused", sentence, "hours")
    return replace(reply, payloads={}, metrics={}, description={}, failure=failure)


def refusing(site: str, round: int, action: Action, grid: FakeGrid | None = None) -> FakeGrid:
    grid = grid or FakeGrid()
    grid.inject(site, refuses, round=round, action=action, times=9)
    return grid


def audited(folder: RunFolder) -> list[dict[str, Any]]:
    return [link.body for link in read_chain(folder.path / "audit.jsonl")]


def test_a_site_that_refuses_the_run_is_left_out(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(refusing("Hungary", 0, Action.DESCRIBE))

    assert folder.read_status()["state"] == "completed"
    assert "Hungary" not in {row["site"] for row in folder.read_metrics()}
    assert "warning: site Hungary is left out: " in capsys.readouterr().out
    first, second, *_ = audited(folder)
    assert (first["event"], first["site"], first["rule"]) == ("refused", "Hungary", "hours")
    assert second["sites"] == ["Cleveland", "Switzerland", "VA Long Beach"]


def test_too_few_willing_sites_end_the_wait_with_their_reasons(settings: Settings) -> None:
    grid = FakeGrid({"Hungary": 59, "Cleveland": 60})
    refusing("Hungary", 0, Action.DESCRIBE, grid)

    with pytest.raises(MissingReplies, match=r"1 of at least 2 .*rule 'hours': work begins"):
        shake_hands(grid, settings())


@pytest.mark.parametrize("method", ["fedavg", "dysco"])
def test_a_site_that_refuses_a_round_is_not_waited_for(finished: Finished, method: str) -> None:
    grid = refusing("Hungary", 2, Action.TRAIN)
    folder = finished(grid, method=method)

    assert folder.read_status()["state"] == "completed"
    assert grid.trained().count((2, "Hungary")) == 1, "asking again is in vain"
    rows = {row["round"]: row for row in folder.read_metrics() if row["phase"] == "federation"}
    assert [rows[round]["replies"] for round in (1, 2, 3)] == [4, 3, 4]
    assert rows[2]["missing"] == {"Hungary": "policy"}
    events = audited(folder)
    assert [(e["round"], e["rule"]) for e in events if e["event"] == "refused"] == [(2, "hours")]
    merged = next(e for e in events if e["event"] == "merged" and e["round"] == 1)
    assert all(len(update["adapter"]) == 64 for update in merged["updates"].values())
    assert set(merged["updates"]) == {"Cleveland", "Hungary", "Switzerland", "VA Long Beach"}
    assert verify(folder.path / "audit.jsonl").events["merged"] == 3


def test_bases_that_a_site_refuses_are_done_without(finished: Finished) -> None:
    folder = finished(refusing("Hungary", 2, Action.BASES), method="dysco")

    assert folder.read_status()["state"] == "completed"


def test_a_minimum_that_was_asked_for_stays(finished: Finished) -> None:
    with pytest.raises(MissingReplies, match="3 of 4 sites sent a valid update, at least 4 needed"):
        finished(refusing("Hungary", 2, Action.TRAIN), federation__min_replies=4)


def test_a_round_that_all_refuse_ends_the_run_with_their_sentences(finished: Finished) -> None:
    grid = FakeGrid()
    for site in grid.sites:
        refusing(site, 2, Action.TRAIN, grid)

    with pytest.raises(MissingReplies, match="0 of 4 sites sent a valid update, at least 1 needed"):
        finished(grid)


def test_a_final_test_that_is_refused_is_written_down(finished: Finished) -> None:
    folder = finished(refusing("Hungary", 3, Action.EVALUATE))

    assert folder.read_status()["state"] == "completed"
    last = audited(folder)[-1]
    assert (last["event"], last["site"], last["action"]) == ("refused", "Hungary", "evaluate")
