"""Every fault ends in one sentence, the right exit code, and the previous model intact."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_federation import (
    FakeGrid,
    Fault,
    as_site,
    changed,
    fails,
    flipped_bit,
    flower_error,
    poisoned,
    reranked,
    reshaped,
    silent,
    with_metrics,
    with_numbers,
    with_round,
    with_weight,
    worker_dies,
)
from flwr.app import Message

from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import MergeRefused, MissingReplies
from fedapp.exchange import Instruction, Reply
from fedapp.results import RunFolder
from fedapp.wire import reply_to_content
from server_app.app import build_strategy, run
from server_app.checkpoint import newest_checkpoint
from server_app.strategies.base import BaseStrategy

Finished = Callable[..., RunFolder]
Settings = Callable[..., RunConfig]

FAULTS: dict[str, tuple[Fault, str]] = {
    "raises": (fails("TrainingError", "site Hungary, round 2: loss is NaN"), "loss is NaN"),
    "hangs": (silent, "no reply within 0.3 s"),
    "crashes": (flower_error, "the client app crashed"),
    "worker dies": (worker_dies, "site Hungary: its worker process died: it was killed. Mend"),
    "nan": (poisoned(float("nan")), "refused (non-finite): array 'layer.1.query.lora_B'"),
    "inf": (poisoned(float("inf")), "refused (non-finite): array 'layer.1.query.lora_B'"),
    "shape": (changed(reshaped), "refused (wrong-shape): array 'classifier.weight' must have"),
    "rank": (changed(reranked), "refused (wrong-rank): pair 'layer.0.query' must have rank 2"),
    "names": (changed(lambda a: Adapter(a.pairs)), "refused (wrong-layout)"),
    "round": (with_round(1), "refused (wrong-round): the update must be of round 2, got 1"),
    "digest": (flipped_bit, "refused (wrong-digest)"),
    "codec": (
        lambda i, r: replace(r, payloads={"adapter": pack(r.payloads["adapter"].unpack(), "bf16")}),
        "refused (wrong-codec): the update must be encoded as fp32, got bf16",
    ),
    "zero weight": (with_weight(0.0), "refused (bad-weight)"),
    "negative weight": (with_weight(-3.0), "refused (bad-weight)"),
    "infinite weight": (with_weight(float("inf")), "refused (bad-weight)"),
    "absurd weight": (with_weight(1e300), "refused (bad-weight)"),
    "more weight than records": (
        with_weight(60.0),
        "refused (bad-weight): the update's weight is at most the 59 training records that the "
        "site announced, got 60.0",
    ),
    "too large": (
        poisoned(2e6),
        "refused (too-large): array 'layer.1.query.lora_B' must hold magnitudes of at most 1e+06, "
        "got 2e+06",
    ),
    "nan loss": (
        with_metrics(loss=float("nan")),
        "refused (bad-metrics): 'loss' of the metrics of received/validation must be finite",
    ),
    "infinite auc": (with_metrics(auc=float("inf")), "refused (bad-metrics): 'auc' of"),
    "negative examples": (with_metrics(examples=-1.0), "refused (bad-metrics): 'examples' of"),
    "metric like a key": (with_metrics(site=1.0), "refused (bad-metrics): the metrics of"),
    "nan seconds": (with_numbers(seconds=float("nan")), "(bad-metrics): 'seconds' of the site's"),
    "absurd seconds": (with_numbers(training_seconds=1e300), "(bad-metrics): 'training_seconds'"),
    "unknown phase": (
        lambda i, r: replace(r, metrics={"mine/test": {"accuracy": 0.5}}),
        "(bad-metrics): there are metrics of 'mine/test'",
    ),
    "no payload": (lambda i, r: replace(r, payloads={}), "refused (empty)"),
    "another site": (as_site("Cleveland"), "the reply is for train of site Cleveland"),
    "extra payload": (
        lambda i, r: replace(r, payloads={**r.payloads, "records": r.payloads["adapter"]}),
        "payload 'records' was not asked for",
    ),
}

LASTING = {"raises", "nan", "inf", "too large"}
"""The same model and seed give the same result again."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_lasting_fault_ends_the_run_and_keeps_the_model(
    settings: Settings, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, expected = FAULTS[name]
    config, grid = settings(federation__max_round_retries=1), FakeGrid()
    grid.inject("Hungary", fault, round=2, times=2)
    folder = RunFolder.create(config)

    with pytest.raises(MissingReplies) as caught:
        run(grid, config, folder, run_id=5)

    sentence = str(caught.value)
    assert sentence.startswith("round 2: 3 of 4 sites sent a valid update, at least 4 needed")
    assert "previous model is kept" in sentence
    assert "site Hungary: " in sentence
    assert expected in sentence
    assert "\n" not in sentence
    assert folder.read_status() == {
        "state": "failed",
        "error": sentence,
        "exit_code": 5,
        "run_id": 5,
    }
    assert newest_checkpoint(folder.checkpoint).round == 1
    assert {row["round"] for row in folder.read_metrics()} == {1}
    assert f"error: {sentence}" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(LASTING))
def test_a_failure_that_would_come_again_is_not_repeated(settings: Settings, name: str) -> None:
    config, grid = settings(federation__max_round_retries=3), FakeGrid()
    grid.inject("Hungary", FAULTS[name][0], round=2)
    folder = RunFolder.create(config)

    with pytest.raises(MissingReplies, match="round 2: 3 of 4 sites sent a valid update"):
        run(grid, config, folder, 1)
    assert grid.trained().count((2, "Hungary")) == 1


def test_only_those_are_asked_again_that_may_still_succeed(
    settings: Settings, finished: Finished
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", poisoned(float("nan")), round=2)
    grid.inject("Cleveland", silent, round=2)

    folder = finished(grid, federation__min_replies=3)

    asked = grid.trained()
    assert (asked.count((2, "Hungary")), asked.count((2, "Cleveland"))) == (1, 2)
    row = _federation(folder)[1]
    assert (row["replies"], row["retries"]) == (3, 1)
    assert row["missing"] == {"Hungary": "non-finite"}


@pytest.mark.parametrize("name", sorted(set(FAULTS) - LASTING))
def test_a_passing_fault_is_repeated_away(finished: Finished, name: str) -> None:
    clean = finished(FakeGrid(), name="clean")
    grid = FakeGrid()
    grid.inject("Hungary", FAULTS[name][0], round=2)

    folder = finished(grid, name="faulty")

    assert _digest(folder) == _digest(clean)
    assert grid.trained()[4:9].count((2, "Hungary")) == 2  # the others are not asked again
    row = _federation(folder)[1]
    assert (row["replies"], row["retries"], row["missing"]) == (4, 1, {})


@pytest.mark.parametrize("name", FAULTS)
def test_enough_other_sites_go_on_without_it(finished: Finished, name: str) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", FAULTS[name][0], round=2, times=3)

    folder = finished(grid, federation__min_replies=3)

    row = _federation(folder)[1]
    assert (row["replies"], row["retries"], list(row["missing"])) == (3, 0, ["Hungary"])
    assert _federation(folder)[2]["replies"] == 4


def test_a_missing_site_does_not_weigh_in(finished: Finished) -> None:
    """Without Hungary in round 1 the merge equals a federation that never had it."""
    grid = FakeGrid()
    grid.inject("Hungary", poisoned(float("nan")), round=1)
    with_fault = finished(grid, name="a", federation__min_replies=3, federation__rounds=1)

    sites = {k: v for k, v in FakeGrid().sites.items() if k != "Hungary"}
    three = FakeGrid({name: site.examples for name, site in sites.items()})
    without = finished(three, name="b", federation__rounds=1)

    assert _digest(with_fault) == _digest(without)


def test_all_missing_sites_are_named(settings: Settings) -> None:
    config, grid = settings(federation__max_round_retries=0), FakeGrid()
    grid.inject("Hungary", silent)
    grid.inject("Cleveland", poisoned(float("nan")))

    with pytest.raises(
        MissingReplies, match=r"Missing: site Cleveland: .*; site Hungary: no reply"
    ):
        run(grid, config, RunFolder.create(config), 1)


def test_a_stack_trace_stays_out_of_the_sentence(settings: Settings) -> None:
    config, grid = settings(federation__max_round_retries=0), FakeGrid()
    grid.inject("Hungary", flower_error)

    with pytest.raises(MissingReplies) as caught:
        run(grid, config, RunFolder.create(config), 1)
    assert "secret text" not in str(caught.value)


def test_a_second_reply_is_ignored(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    clean, grid = finished(FakeGrid(), name="clean"), FakeGrid()
    copies: list[Message] = []
    original = grid._deliver

    def twice(message: Message) -> Message | None:
        reply = original(message)
        if reply is not None and message.metadata.message_type == "train":
            copies.append(reply)
        return reply

    grid._deliver = twice  # type: ignore[method-assign]

    def deliver_again() -> None:
        grid.extra, copies[:] = list(copies), []

    grid.before_pull = deliver_again
    folder = finished(grid, name="doubled")

    assert _digest(folder) == _digest(clean)
    assert all(row["replies"] == 4 for row in _federation(folder))
    assert "a second reply from node" in capsys.readouterr().out


def test_a_late_reply_is_ignored(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    """Round 1's answer of Hungary arrives while the repeat is collected, and is not mistaken."""
    clean, grid = finished(FakeGrid(), name="clean"), FakeGrid()
    late: list[Message] = []
    original = grid._deliver

    def hold_first(message: Message) -> Message | None:
        reply = original(message)
        asked = grid.trained()[-1:] == [(1, "Hungary")] and grid.trained().count((1, "Hungary"))
        if asked == 1 and reply is not None and not late:
            late.append(reply)
            return None
        if asked == 2:
            grid.extra = [late[0]]
        return reply

    grid._deliver = hold_first  # type: ignore[method-assign]
    folder = finished(grid, name="late")

    assert "a late or unknown reply from node" in capsys.readouterr().out
    assert _digest(folder) == _digest(clean)
    assert _federation(folder)[0]["retries"] == 1


def test_a_reply_from_another_node_is_refused(settings: Settings) -> None:
    config, grid = settings(federation__max_round_retries=0), FakeGrid()

    def forged(instruction: Instruction, reply: Reply) -> Message:
        message = _asked(grid)
        answer = Message(reply_to_content(reply), reply_to=message)
        answer.metadata.__dict__["_src_node_id"] = 4711
        return answer

    batches: list[list[Message]] = []
    grid.before_push = batches.append

    def _asked(grid: FakeGrid) -> Message:
        hungary = next(n for n, names in grid.hosted.items() if names == ["Hungary"])
        return next(m for m in batches[-1] if m.metadata.dst_node_id == hungary)

    grid.inject("Hungary", forged)
    with pytest.raises(MissingReplies, match="the reply came from node 4711, expected node"):
        run(grid, config, RunFolder.create(config), 1)


def test_an_oversized_update_is_refused(settings: Settings) -> None:
    config = settings(federation__max_payload_mb=0.0001, federation__max_round_retries=0)

    with pytest.raises(
        MissingReplies, match=r"refused \(oversized\): the update must have at most"
    ):
        run(FakeGrid(), config, RunFolder.create(config), 1)


@pytest.mark.parametrize("method", ["fedavg", "svd", "subspace-reg"])
def test_a_merge_that_overflows_is_refused_and_not_repeated(
    settings: Settings,
    method: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each update is sound, their merge is not finite: the model of round 1 stays."""
    config, grid = settings(method=method, federation__max_round_retries=3), FakeGrid()

    _overflow(monkeypatch, type(build_strategy(config)))
    folder = RunFolder.create(config)
    grid.inject("Hungary", poisoned(-7e5), round=2)
    with pytest.raises(MergeRefused, match="round 2") as caught:
        run(grid, config, folder, 1)

    assert "must be finite, got inf at" in str(caught.value)
    assert "site Hungary sent the largest numbers (up to 7e+05)" in str(caught.value)
    assert grid.trained().count((2, "Hungary")) == 1  # the same updates would come again
    assert newest_checkpoint(folder.checkpoint).round == 1
    assert folder.read_status()["exit_code"] == 4
    assert "previous model is kept" in capsys.readouterr().out


def _overflow(monkeypatch: pytest.MonkeyPatch, strategy: type[BaseStrategy]) -> None:
    """Let the merge itself produce an Inf, whatever the updates hold."""
    original = strategy.merge

    def broken(self: BaseStrategy, round: int, updates: list) -> Adapter:  # type: ignore[type-arg]
        merged = original(self, round, updates)
        return merged if round == 1 else merged.map(lambda n, a: np.full_like(a, np.inf))

    monkeypatch.setattr(strategy, "merge", broken)


def test_fedsvd_refuses_an_update_that_moved_a(settings: Settings) -> None:
    config, grid = settings(method="fedsvd", federation__max_round_retries=0), FakeGrid()

    def moved(name: str, array: np.ndarray) -> np.ndarray:
        return array * np.float32(1.5)

    grid.inject("Hungary", changed(lambda adapter: adapter.map(moved)))
    with pytest.raises(
        MissingReplies, match=r"site Hungary: update refused: .* changed A"
    ) as caught:
        run(grid, config, RunFolder.create(config), 1)
    assert caught.value.exit_code == 5
    assert grid.trained().count((1, "Hungary")) == 1


def test_an_unexpected_error_is_recorded_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, grid = settings(), FakeGrid()

    def broken(messages: list[Message]) -> None:
        raise ConnectionError("the link is down")

    grid.before_push = broken
    folder = RunFolder.create(config)
    with pytest.raises(ConnectionError):
        run(grid, config, folder, 1)
    status = json.loads(folder.status_file.read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert status["error"] == "ConnectionError: the link is down"


def _digest(folder: RunFolder) -> str:
    return str(json.loads(folder.summary_file.read_text())["adapter_digest"])


def _federation(folder: RunFolder) -> list[dict[str, object]]:
    return [row for row in folder.read_metrics() if row["site"] is None]


def test_the_first_cause_is_named_even_if_a_repeat_meets_another(settings: Settings) -> None:
    config, grid = settings(federation__max_round_retries=1), FakeGrid()
    grid.inject("Hungary", worker_dies, round=2, times=1)
    grid.inject("Hungary", silent, round=2, times=1)

    with pytest.raises(MissingReplies) as caught:
        run(grid, config, RunFolder.create(config), run_id=5)

    assert "site Hungary: its worker process died: it was killed (at the last repeat: no reply" in (
        str(caught.value)
    )


def test_what_broke_gets_time_before_every_repeat(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("server_app.training_round.time", clock)
    monkeypatch.setattr("server_app.training_round.PAUSE_SECONDS", 1.0)
    took = []
    for fault in (worker_dies, with_weight(0.0)):
        config, grid = settings(name=fault.__name__.strip("<>"), federation__rounds=1), FakeGrid()
        grid.inject("Hungary", fault, round=1, times=2)
        run(grid, config, RunFolder.create(config), run_id=5)
        took.append(sum(slept))

    # One second, then two; a refused update is asked for again at once.
    assert took == pytest.approx([1 + 2, 1 + 2])
