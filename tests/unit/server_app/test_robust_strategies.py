"""The robust baselines through `aggregate`: against Flower's own and the published rules."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_federation import FakeGrid, changed
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum
from flwr.serverapp.strategy.multikrum import select_multikrum
from flwr.supercore.task_identity import TaskIdentity

from fedapp.adapter import Adapter, LoraPair
from fedapp.attacks import scale
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, MergeRefused
from fedapp.results import RunFolder
from fedapp.robust.vectors import to_vector
from server_app.app import build_strategy
from server_app.sampling import check_sites
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update

METHODS = ("krum", "multi-krum", "trimmed-mean", "median", "norm-clip", "fltrust")


def adapter(seed: int) -> Adapter:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    return Adapter({"q": LoraPair(draw(6, 2), draw(2, 5), 2.0)}, {"classifier.weight": draw(3, 6)})


START = adapter(99)


def strategy(method: str, **flat: Any) -> BaseStrategy:
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in flat.items()}
    built = build_strategy(RunConfig.from_flat({"method": method, **given}))
    built.begin(START)
    return built


def updates_of(count: int, seed: int = 0) -> list[Update]:
    return [Update(f"site-{k}", float(10 + k), pack(adapter(100 * seed + k))) for k in range(count)]


def vectors(updates: Sequence[Update]) -> list[list[float]]:
    return [to_vector(update.adapter).astype(float).tolist() for update in updates]


def replies(updates: Sequence[Update]) -> list[Message]:
    made = []
    for node, update in enumerate(updates):
        arrays = ArrayRecord({name: Array(array) for name, array in update.adapter.arrays()})
        content = RecordDict(
            {"arrays": arrays, "metrics": MetricRecord({"num-examples": update.weight})}
        )
        asked = Message(RecordDict(), dst_node_id=node + 1, message_type="train")
        made.append(Message(content, reply_to=asked))
    return made


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # set by Flower when a run starts
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_median_is_flowers_to_the_last_bit(count: int) -> None:
    updates = updates_of(count)

    ours = strategy("median").aggregate(1, updates).adapter
    theirs, _ = FedMedian().aggregate_train(1, replies(updates))

    assert theirs is not None
    for name, array in ours.arrays():
        assert array.tobytes() == theirs[name].numpy().astype(np.float32).tobytes(), name


@pytest.mark.parametrize(("count", "beta"), [(4, 0.25), (8, 0.2), (8, 0.45), (3, 0.0)])
def test_trimmed_mean_is_flowers_to_rounding(count: int, beta: float) -> None:
    updates = updates_of(count)

    ours = strategy("trimmed-mean", trimmed_mean__beta=beta).aggregate(1, updates).adapter
    theirs, _ = FedTrimmedAvg(beta=beta).aggregate_train(1, replies(updates))

    assert theirs is not None
    for name, array in ours.arrays():
        np.testing.assert_allclose(array, theirs[name].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("count", "faulty", "seed"), [(4, 1, 0), (5, 1, 1), (8, 2, 2), (8, 5, 3)])
def test_krum_chooses_whom_flowers_krum_chooses(count: int, faulty: int, seed: int) -> None:
    updates = updates_of(count, seed)

    ours = strategy("krum", krum__faulty=faulty).aggregate(1, updates)
    theirs, _ = Krum(num_malicious_nodes=faulty).aggregate_train(1, replies(updates))

    assert theirs is not None
    for name, array in ours.adapter.arrays():
        assert array.tobytes() == theirs[name].numpy().tobytes(), name
    assert ours.diagnostics["accepted"] == 1 / count


def test_multi_krum_averages_whom_flowers_selects() -> None:
    updates = updates_of(8, 4)

    ours = strategy("multi-krum", multi_krum__faulty=2, multi_krum__selected=3)
    merged = ours.aggregate(1, updates)

    chosen = select_multikrum([message.content for message in replies(updates)], 2, 3)
    mean = {
        name: np.mean([record["arrays"][name].numpy() for record in chosen], axis=0)
        for name, _ in START.arrays()
    }
    for name, array in merged.adapter.arrays():
        np.testing.assert_allclose(array, mean[name], rtol=1e-5, atol=1e-7)
    assert merged.diagnostics["accepted"] == 3 / 8


def test_multi_krum_takes_all_but_the_presumed_faulty() -> None:
    built = strategy("multi-krum", multi_krum__faulty=2)

    assert built.aggregate(1, updates_of(8)).diagnostics["accepted"] == 6 / 8


@pytest.mark.parametrize("bound", [0.0, 1.5])
def test_norm_clipping_by_a_plain_loop(bound: float) -> None:
    updates, start = updates_of(4), to_vector(START).astype(float)
    changes = [np.array(v) - start for v in vectors(updates)]
    norms = [math.hypot(*change) for change in changes]
    limit = bound or float(np.median(norms))

    merged = strategy("norm-clip", norm_clip__bound=bound).aggregate(1, updates).adapter

    total = sum(update.weight for update in updates)
    expected = start + sum(
        u.weight / total * min(1, limit / norm) * change
        for u, norm, change in zip(updates, norms, changes, strict=True)
    )
    np.testing.assert_allclose(to_vector(merged), expected, rtol=1e-5, atol=1e-6)


def test_fltrust_by_a_plain_loop() -> None:
    updates, start = updates_of(6, 5), to_vector(START).astype(float)
    changes = {u.site: np.array(v) - start for u, v in zip(updates, vectors(updates), strict=True)}
    root = changes.pop("site-2")

    merged = strategy("fltrust", fltrust__root="site-2").aggregate(1, updates)

    trust = {
        s: max(0.0, g @ root / (math.hypot(*g) * math.hypot(*root))) for s, g in changes.items()
    }
    step = sum(trust[s] * math.hypot(*root) / math.hypot(*g) * g for s, g in changes.items())
    np.testing.assert_allclose(
        to_vector(merged.adapter), start + step / sum(trust.values()), rtol=1e-4, atol=1e-6
    )
    assert merged.diagnostics["accepted"] == sum(t > 0 for t in trust.values()) / 6


def test_fltrust_moves_nowhere_with_those_who_point_elsewhere() -> None:
    start = to_vector(START)

    def moved(step: float) -> Adapter:
        shift = itertools.repeat(np.float32(step))
        return START.map(lambda _, x: x + next(shift))

    updates = [Update(name, 1.0, pack(moved(by))) for name, by in (("a", 0.1), ("b", -5.0))]
    merged = strategy("fltrust", fltrust__root="a").aggregate(1, updates)

    np.testing.assert_array_equal(to_vector(merged.adapter), start)


def test_accepted_rates_of_honest_and_faulty_sites() -> None:
    updates = updates_of(5)
    near = adapter(1000)
    for update in updates[:4]:
        update.packed = pack(near.map(lambda _, x: x + np.float32(1e-3)))

    built = strategy("multi-krum", multi_krum__faulty=1, faults__sites="site-4")
    numbers = built.aggregate(1, updates).diagnostics

    assert (numbers["accepted_honest"], numbers["accepted_faulty"]) == (1.0, 0.0)


def test_too_few_updates_are_a_sentence_and_keep_the_model() -> None:
    built = strategy("krum", krum__faulty=2)

    with pytest.raises(MergeRefused, match=r"krum: Krum needs at least f \+ 3 models"):
        built.aggregate(1, updates_of(4))
    assert built.adapter is START
    with pytest.raises(MergeRefused, match="no update of the trusted site 'x'"):
        strategy("fltrust", fltrust__root="x").aggregate(1, updates_of(2))


@pytest.mark.parametrize(
    ("flat", "sentence"),
    [
        ({"method": "krum", "krum.faulty": 2}, "method krum needs at least 5 updates a round"),
        ({"method": "multi-krum", "federation.min-replies": 2}, "but 2 may be all"),
        ({"method": "fltrust"}, "fltrust.root must be one of a, b, c, d"),
        ({"method": "fltrust", "fltrust.root": "a", "federation.fraction": 0.5}, "got 'a' and 0.5"),
        ({"faults.sites": "a,x"}, "faults.sites names 'x', but the sites are a, b, c, d"),
        ({"faults.sites": "a,b,c,d"}, "leave at least one honest"),
    ],
)
def test_settings_that_cannot_be_met(flat: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_sites("abcd", RunConfig.from_flat(flat))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_by_configuration_alone(
    finished: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str], method: str
) -> None:
    grid = FakeGrid()
    for round in (1, 2, 3):
        grid.inject("Hungary", changed(lambda adapter: scale(adapter, -50.0)), round=round)

    folder = finished(
        grid,
        method=method,
        fltrust__root="Cleveland",
        multi_krum__faulty=1,
        faults__sites="Hungary",
    )

    rows = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    assert [row["faulty"] for row in rows] == [{"Hungary": "sign-flip"}] * 3
    summary = json.loads(folder.summary_file.read_text())
    assert sorted(summary["sites"]) == ["Cleveland", "Switzerland", "VA Long Beach"]
    assert sorted(summary["faulty"]) == ["Hungary"]
    told = "REHEARSAL OF ATTACKS: Hungary is faulty on purpose (sign-flip from round 1 on)"
    assert summary["rehearsal"].startswith(told)
    assert told in folder.config_file.read_text()
    assert told in (folder.adapter / "README.md").read_text()
    printed = capsys.readouterr().out
    assert printed.count(told) == 2, "at the beginning, and above the results"
    assert printed.count("faulty on purpose: Hungary (sign-flip)") == 3
    if method in ("krum", "multi-krum"):
        assert {row["accepted_faulty"] for row in rows} == {0.0}
