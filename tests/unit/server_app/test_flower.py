"""A strategy of ours called the Flower way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fake_federation import (
    HOSPITALS,
    FakeGrid,
    Fault,
    changed,
    fails,
    flower_error,
    initial_adapter,
    poisoned,
    with_metrics,
)
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedapp.config import RunConfig
from fedapp.errors import FedappError
from fedapp.exchange import Action
from fedapp.results import RunFolder
from server_app.app import build_strategy
from server_app.flower import from_arrays, to_arrays

Settings = Callable[..., RunConfig]


def test_start_is_the_same_run(settings: Settings, finished: Callable[..., RunFolder]) -> None:
    digest = json.loads(finished(name="plain").summary_file.read_text())["adapter_digest"]
    strategy = build_strategy(settings(name="flower"))
    seen: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(round)
        return MetricRecord({"arrays": len(arrays)})

    result = strategy.start(
        FakeGrid(), ArrayRecord(), num_rounds=3, timeout=5, evaluate_fn=evaluate
    )

    assert isinstance(strategy, Strategy)
    assert strategy.adapter.digest() == digest
    assert from_arrays(result.arrays, strategy.adapter).digest() == digest
    assert seen == [0, 1, 2, 3]
    assert result.train_metrics_clientapp[3]["replies"] == 4
    assert set(result.evaluate_metrics_serverapp) == {0, 1, 2, 3}


def test_start_may_bring_its_own_first_model(settings: Settings) -> None:
    config = settings(federation__rounds=1)
    mine = initial_adapter(config).map(lambda name, array: array + np.float32(1))
    grid = FakeGrid()

    build_strategy(config).start(grid, to_arrays(mine), num_rounds=1, timeout=5)

    first = next(i for i in grid.sent if i.round == 1)
    assert first.payloads["adapter"].unpack().digest() == mine.digest()


def test_flowers_own_loop_can_drive_it(settings: Settings) -> None:
    """configure -> messages -> replies -> aggregate equals the round loop's first round."""
    config, grid = settings(), FakeGrid()
    strategy = build_strategy(config)
    strategy.begin(initial_adapter(config))

    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    grid.push_messages(messages)
    replies = list(grid.pull_messages([m.metadata.message_id for m in messages]))
    arrays, metrics = strategy.aggregate_train(1, replies)
    messages = list(strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), grid))
    grid.push_messages(messages)
    evaluated = strategy.aggregate_evaluate(
        1, grid.pull_messages([m.metadata.message_id for m in messages])
    )

    assert {m.metadata.message_type for m in messages} == {"evaluate"}
    assert len(replies) == len(HOSPITALS)
    assert arrays is not None
    assert metrics is not None
    assert evaluated is not None
    assert from_arrays(arrays, strategy.adapter).digest() == strategy.adapter.digest()
    assert {"accuracy", "cancellation"} <= set(metrics)
    assert 0.5 <= float(evaluated["accuracy"]) <= 0.9  # type: ignore[arg-type]


def test_unusable_replies_are_named_and_left_out(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    config, grid = settings(), FakeGrid()
    grid.inject("Hungary", poisoned(float("nan")))
    grid.inject("Cleveland", fails("TrainingError", "site Cleveland, round 1: loss is NaN"))
    strategy = build_strategy(config)
    strategy.begin(initial_adapter(config))

    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    grid.push_messages(messages)
    arrays, _ = strategy.aggregate_train(
        1, grid.pull_messages([m.metadata.message_id for m in messages])
    )

    assert arrays is not None
    text = capsys.readouterr().out
    assert "site Hungary, round 1: array 'layer.1.query.lora_B' must be finite" in text
    assert "loss is NaN" in text
    assert strategy.aggregate_train(2, []) == (None, None)


def _asked(config: RunConfig, grid: FakeGrid, evaluate: bool = False):  # type: ignore[no-untyped-def]
    strategy = build_strategy(config)
    strategy.begin(initial_adapter(config))
    ask = strategy.configure_evaluate if evaluate else strategy.configure_train
    messages = list(ask(1, ArrayRecord(), ConfigRecord(), grid))
    grid.push_messages(messages)
    return strategy, list(grid.pull_messages([m.metadata.message_id for m in messages]))


BROKEN: dict[str, tuple[Callable[[Message], object], str]] = {
    "no header": (lambda m: setattr(m, "content", RecordDict()), "the message has no fedapp"),
    "other node": (
        lambda m: m.metadata.__dict__.update(_src_node_id=4711),
        "node 4711: it answers for site 'Hungary', which is not there",
    ),
}


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_reply_is_named_and_left_out(
    settings: Settings, capsys: pytest.CaptureFixture[str], name: str, evaluate: bool
) -> None:
    change, sentence = BROKEN[name]
    grid = FakeGrid()
    strategy, replies = _asked(settings(), grid, evaluate)
    home = strategy.roster.nodes["Hungary"]
    change(next(m for m in replies if m.metadata.src_node_id == home))

    if evaluate:
        assert strategy.aggregate_evaluate(1, replies)
    else:
        assert strategy.aggregate_train(1, replies)[0] is not None
    text = capsys.readouterr().out
    assert sentence in text
    if name == "no header":
        assert f"warning: node {home} (Hungary): " in text


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (with_metrics(loss=float("nan")), "'loss' of the metrics of"),
        (with_metrics(accuracy=7.0), "must be between 0 and 1, got 7.0"),
        (flower_error, "its client app failed (Flower error 8: RuntimeError: the client app"),
        (
            lambda i, r: replace(r, action=Action.LOCAL_ONLY),
            "the reply is for local-only, expected",
        ),
    ],
)
def test_a_reply_with_bad_content_is_named_and_left_out(
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    fault: Fault,
    sentence: str,
    evaluate: bool,
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", fault, action=Action.EVALUATE if evaluate else Action.TRAIN)
    strategy, replies = _asked(settings(), grid, evaluate)

    if evaluate:
        assert strategy.aggregate_evaluate(1, replies)
    else:
        assert strategy.aggregate_train(1, replies)[0] is not None
    text = capsys.readouterr().out
    assert sentence in text
    assert "(Hungary): " in text


def test_a_second_reply_of_a_site_does_not_count_twice(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy, replies = _asked(settings(), FakeGrid())
    once = strategy.aggregate_train(1, replies)[0]
    strategy.begin(initial_adapter(settings()))

    twice = strategy.aggregate_train(1, [*replies, replies[0]])[0]

    assert (
        from_arrays(twice, strategy.adapter).digest()
        == from_arrays(once, strategy.adapter).digest()
    )
    assert "a second reply is ignored" in capsys.readouterr().out


def test_an_update_that_the_method_cannot_use_is_left_out(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", changed(lambda a: a.map(lambda _, array: array * np.float32(1.5))))
    strategy, replies = _asked(settings(method="fedsvd"), grid)

    arrays, metrics = strategy.aggregate_train(1, replies)

    assert arrays is not None
    assert metrics is not None
    assert "site Hungary: fedsvd trains B over the A that was sent" in capsys.readouterr().out


def test_arrays_of_another_model_are_refused(settings: Settings) -> None:
    adapter = initial_adapter(settings())
    arrays = to_arrays(adapter)
    smaller = ArrayRecord({name: arrays[name] for name in list(arrays)[1:]})

    with pytest.raises(FedappError, match="must be those of the adapter"):
        from_arrays(smaller, adapter)
    with pytest.raises(FedappError, match="must have shape"):
        from_arrays(to_arrays(initial_adapter(settings(lora__rank=3))), adapter)


def test_the_summary_names_the_methods_settings(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    build_strategy(settings(method="subspace-reg")).summary()

    text = capsys.readouterr().out
    assert "method subspace-reg" in text
    assert "subspace-reg.mu = 0.1" in text
