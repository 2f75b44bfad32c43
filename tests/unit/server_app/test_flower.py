"""A strategy of ours called the Flower way."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from fake_federation import HOSPITALS, FakeGrid, fails, initial_adapter, poisoned
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedapp.config import RunConfig
from fedapp.errors import FedappError
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
