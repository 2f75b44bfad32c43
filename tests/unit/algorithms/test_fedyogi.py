"""FedYogi against its published recursion, and against Flower's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedYogi as FlowerFedYogi
from flwr.supercore.task_identity import TaskIdentity
from quadratic import heads, quadratic_config, regressions, snapshot

from fedapp.adapter import Adapter
from fedapp.codec import pack
from server_app.app import build_strategy
from server_app.updates import Update

LOSSES = [(np.diag([1.0, 2.0]), np.array([1.0, -1.0])), (np.eye(2), np.array([-2.0, 4.0]))]
ETA, BETA_1, BETA_2, TAU = 0.05, 0.8, 0.95, 0.02


def yogi_config(**more: Any) -> Any:
    return quadratic_config(
        federation__algorithm="fedyogi",
        fedyogi__server_lr=ETA,
        fedyogi__beta_1=BETA_1,
        fedyogi__beta_2=BETA_2,
        fedyogi__tau=TAU,
        **more,
    )


def test_the_sequence_is_the_published_one() -> None:
    steps, rate = 3, 0.1
    federation = heads(yogi_config(), LOSSES, [10, 30], [steps, steps])

    w, m, v = np.zeros(2), np.zeros(2), np.full(2, TAU**2)
    for number in range(1, 40):
        federation.round(number)
        mean = np.zeros(2)
        for share, (h, b) in zip((0.25, 0.75), LOSSES, strict=True):
            y = w.copy()
            for _ in range(steps):
                y = y - rate * h @ (y - b)
            mean += share * y
        d = mean - w
        m = BETA_1 * m + (1 - BETA_1) * d
        v = v - (1 - BETA_2) * d**2 * np.sign(v - d**2)
        w = w + ETA * m / (np.sqrt(v) + TAU)
        np.testing.assert_allclose(federation.head, w, atol=2e-5)


def test_the_arithmetic_is_that_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower averages messages, so each round it gets one that holds what our merge gave."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    rng = np.random.default_rng(0)
    first = {"head": rng.standard_normal((3, 4)).astype(np.float32)}
    strategy = build_strategy(yogi_config())
    strategy.begin(Adapter({}, first))
    flower = FlowerFedYogi(eta=ETA, beta_1=BETA_1, beta_2=BETA_2, tau=TAU)
    flower.current_arrays = dict(first)
    # The paper's start; Flower's is zero.
    flower.v_t = {"head": np.full((3, 4), TAU**2, np.float32)}

    for number in range(1, 6):
        merged = rng.standard_normal((3, 4)).astype(np.float32)
        strategy.aggregate(number, [Update("site", 1.0, pack(Adapter({}, {"head": merged})))])
        record = RecordDict(
            {
                "arrays": ArrayRecord({"head": Array(merged)}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        asked = Message(RecordDict(), dst_node_id=1, message_type="train")
        arrays, _ = flower.aggregate_train(number, [Message(record, reply_to=asked)])
        assert arrays is not None
        flower.current_arrays = {"head": arrays["head"].numpy()}

        ours = strategy.adapter.tensors["head"]
        np.testing.assert_allclose(ours, flower.current_arrays["head"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "ffa-lora", "fedsa-lora"])
def test_what_no_site_trains_stays_as_it_is(method: str) -> None:
    federation = regressions(yogi_config(method=method))
    for number in (1, 2):
        federation.round(number)

    ends = dict(federation.strategy.adapter.arrays())
    for name, before in federation.initial.arrays():
        same = np.array_equal(ends[name], before)
        assert same != federation.strategy.contributes(name), name


def test_a_restored_coordinator_goes_on_with_the_same_bits() -> None:
    whole, parts = regressions(yogi_config()), regressions(yogi_config())
    for number in (1, 2):
        whole.round(number)
        parts.round(number)
    saved = snapshot(parts.strategy)
    parts.strategy = build_strategy(yogi_config())
    parts.strategy.load_state_dict(saved)

    whole.round(3)
    parts.round(3)

    assert whole.strategy.adapter.digest() == parts.strategy.adapter.digest()
