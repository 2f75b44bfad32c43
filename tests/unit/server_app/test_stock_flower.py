"""Our FedAvg gives, bit for bit, what Flower's own FedAvg gives on the same arrays."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.supercore.task_identity import TaskIdentity

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import pack
from fedapp.config import RunConfig
from server_app.strategies.fedavg import FedAvg as OurFedAvg
from server_app.updates import Update


def make_updates(seed: int, count: int) -> list[Update]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        # Magnitudes from 1e-6 to 1e6, where another order of operations would show.
        return (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape)).astype("float32")

    def adapter() -> Adapter:
        pairs = {
            f"layer.{i}.{kind}": LoraPair(draw(24, 4), draw(4, 16), 2.0)
            for i in range(3)
            for kind in ("query", "value")
        }
        return Adapter(pairs, {"classifier.weight": draw(3, 24), "classifier.bias": draw(3)})

    return [
        Update(f"site-{k:03}", float(rng.integers(1, 1000)), pack(adapter())) for k in range(count)
    ]


def as_record(update: Update, integer_weight: bool = False) -> RecordDict:
    weight = int(update.weight) if integer_weight else update.weight
    arrays = ArrayRecord({name: Array(array) for name, array in update.adapter.arrays()})
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": weight})})


def assert_bit_identical(ours: Adapter, theirs: ArrayRecord) -> None:
    names = [name for name, _ in ours.arrays()]
    assert sorted(names) == sorted(theirs)
    for name, array in ours.arrays():
        stock = theirs[name].numpy()
        assert array.dtype == stock.dtype == np.float32
        assert array.tobytes() == stock.tobytes(), name


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("integer_weight", [False, True])
def test_same_bits_as_flowers_aggregation(count: int, integer_weight: bool) -> None:
    updates = make_updates(count, count)

    ours = OurFedAvg(RunConfig()).merge(1, updates)
    theirs = aggregate_arrayrecords([as_record(u, integer_weight) for u in updates], "num-examples")

    assert_bit_identical(ours, theirs)


def test_same_bits_as_flowers_strategy_fed_with_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # set by Flower when a run starts
        monkeypatch.setattr(TaskIdentity, name, 1)
    updates = make_updates(5, 6)
    replies = []
    for node, update in enumerate(updates):
        asked = Message(RecordDict(), dst_node_id=node + 1, message_type="train")
        replies.append(Message(as_record(update), reply_to=asked))

    ours = OurFedAvg(RunConfig()).merge(1, updates)
    theirs, _ = FedAvg().aggregate_train(1, replies)

    assert theirs is not None
    assert_bit_identical(ours, theirs)


def test_the_comparison_can_fail() -> None:
    updates = make_updates(7, 7)

    reordered = OurFedAvg(RunConfig()).merge(1, updates[::-1])
    theirs = aggregate_arrayrecords([as_record(u) for u in updates], "num-examples")

    with pytest.raises(AssertionError):
        assert_bit_identical(reordered, theirs)
