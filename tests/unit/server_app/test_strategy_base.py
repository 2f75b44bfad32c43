"""The seams that every method uses: algorithm, state, refusal without a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_federation import FakeGrid, initial_adapter

from fedapp import codec as codec_module
from fedapp import validation
from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import MergeRefused
from fedapp.exchange import Action, Reply
from fedapp.increments import add
from fedapp.results import RunFolder
from fedapp.state import join_state, split_state
from server_app import app
from server_app.algorithms.base import Round
from server_app.algorithms.fedavgm import FedAvgM
from server_app.strategies.base import BaseStrategy
from server_app.strategies.fedavg import FedAvg
from server_app.training_round import validate
from server_app.updates import Update

CONFIG = RunConfig.from_flat({"method": "fedavg", "lora.rank": 2})
MODEL = initial_adapter(CONFIG)


def momentum() -> FedAvgM:
    """u <- u / 2 + (merged - previous); next = previous + u: an algorithm with memory."""
    return FedAvgM(CONFIG.with_changes({"fedavgm.momentum": 0.5}))


def _updates(*factors: float) -> list[Update]:
    return [
        Update(
            f"site-{n}", float(n + 1), pack(MODEL.map(lambda _, a, f=factor: (a + f).astype("f4")))
        )
        for n, factor in enumerate(factors)
    ]


def test_the_default_algorithm_keeps_the_merged_model() -> None:
    strategy = FedAvg(CONFIG)
    strategy.begin(MODEL)

    result = strategy.aggregate(1, _updates(0.1))

    assert result.adapter.digest() == strategy.merge(1, _updates(0.1)).digest()
    assert set(strategy.state_dict()) == {"adapter"}


def test_updates_are_merged_in_the_order_of_names() -> None:
    seen: list[str] = []

    class Spy(FedAvg):
        def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
            seen.extend(update.site for update in updates)
            return super().merge(round, updates)

    strategy = Spy(CONFIG)
    strategy.begin(MODEL)
    strategy.aggregate(1, _updates(0.1, 0.2, 0.3)[::-1])

    assert seen == ["site-0", "site-1", "site-2"]


def test_a_refused_merge_leaves_model_and_algorithm_as_they_were() -> None:
    class Explodes(FedAvgM):
        def step(self, round: Round, previous: Adapter, merged: Adapter) -> Adapter:
            stepped = super().step(round, previous, merged)  # the velocity has moved already
            return stepped.map(lambda _, array: array * np.float32(np.inf if explode else 1))

    explode = False
    strategy = FedAvg(CONFIG, Explodes(CONFIG))
    strategy.begin(MODEL)
    strategy.aggregate(1, _updates(0.1, 0.2))
    before = strategy.adapter.digest(), strategy.state_dict()["algorithm.velocity"].digest()
    explode = True

    with pytest.raises(MergeRefused):
        strategy.aggregate(2, _updates(0.3, 0.4))
    after = strategy.adapter.digest(), strategy.state_dict()["algorithm.velocity"].digest()
    assert after == before


def test_a_decomposition_that_does_not_converge_is_a_refused_merge() -> None:
    class Diverges(FedAvg):
        def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
            raise np.linalg.LinAlgError("SVD did not converge")

    strategy = Diverges(CONFIG)
    strategy.begin(MODEL)

    with pytest.raises(MergeRefused, match="round 4: the merge does not converge"):
        strategy.aggregate(4, _updates(0.1))
    assert strategy.adapter is MODEL


def test_diagnostics_that_do_not_converge_are_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Undiagnosed(FedAvg):
        def diagnostics(self, *args: Any) -> dict[str, float]:
            raise np.linalg.LinAlgError("SVD did not converge")

    strategy, plain = Undiagnosed(CONFIG), FedAvg(CONFIG)
    for each in (strategy, plain):
        each.begin(MODEL)

    aggregate = strategy.aggregate(4, _updates(0.1, 0.2))

    assert aggregate.diagnostics == {}
    assert strategy.adapter.digest() == plain.aggregate(4, _updates(0.1, 0.2)).adapter.digest()
    assert "warning: round 4: no diagnostics, a decomposition" in capsys.readouterr().out


def test_an_error_in_the_diagnostics_leaves_the_model_as_it_was() -> None:
    class Broken(FedAvg):
        def diagnostics(self, *args: Any) -> dict[str, float]:
            assert self.adapter is MODEL  # not replaced yet
            raise ZeroDivisionError

    strategy = Broken(CONFIG, momentum())
    strategy.begin(MODEL)

    with pytest.raises(ZeroDivisionError):
        strategy.aggregate(1, _updates(0.1))
    assert strategy.adapter is MODEL
    assert "algorithm.velocity" not in strategy.state_dict()


def test_state_survives_the_split_into_tensors_and_json() -> None:
    strategy = FedAvg(CONFIG, momentum())
    strategy.begin(MODEL)
    strategy.aggregate(1, _updates(0.1, 0.2))
    tensors, described = split_state(strategy.state_dict())

    other = FedAvg(CONFIG, momentum())
    other.load_state_dict(join_state(tensors, json.loads(json.dumps(described))))

    results = [s.aggregate(2, _updates(0.3)).adapter.digest() for s in (strategy, other)]
    assert results[0] == results[1]


def test_a_run_with_a_server_optimiser_resumes_bit_identically(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(config: RunConfig) -> BaseStrategy:
        return FedAvg(config, momentum())

    monkeypatch.setattr(app, "build_strategy", build)
    digests = []
    for name in ("whole", "parts"):
        config = CONFIG.with_changes(
            {"output-dir": str(tmp_path), "name": name, "federation.round-timeout": 5}
        )
        folder, grid = RunFolder.create(config), FakeGrid()
        if name == "parts":

            def stop(messages: list[Any]) -> None:
                if messages[0].metadata.group_id == "3":
                    raise KeyboardInterrupt

            grid.before_push = stop
            with pytest.raises(KeyboardInterrupt):
                app.run(grid, config, folder, 1)
            config = config.with_changes({"resume": str(folder.path)})
        app.run(FakeGrid(), config, folder, 1)
        digests.append(json.loads(folder.summary_file.read_text())["adapter_digest"])
    assert digests[0] == digests[1]


def test_a_strategy_without_a_model_says_so() -> None:
    with pytest.raises(RuntimeError, match="call begin"):
        FedAvg(CONFIG).payloads(1, "A")


@pytest.mark.parametrize(("codec", "times"), [("fp32", 1), ("bf16", 2)])
def test_validation_hands_on_what_it_decoded(
    monkeypatch: pytest.MonkeyPatch, codec: Any, times: int
) -> None:
    decoded: list[str] = []
    original = codec_module.decode

    def count(array: Any, layout: Any) -> Adapter:
        decoded.append(layout.codec)
        return original(array, layout)

    monkeypatch.setattr(codec_module, "decode", count)
    monkeypatch.setattr(validation, "decode", count)
    strategy = FedAvg(CONFIG.with_changes({"federation.codec": codec}))
    strategy.begin(MODEL)
    packed = pack(MODEL, codec)
    sent = packed.unpack() if codec == "fp32" else add(MODEL, packed.unpack())
    reply = Reply("A", 1, Action.TRAIN, payloads={"adapter": packed}, weight=3.0)

    update = validate(strategy, 1, reply)

    assert update.adapter.digest() == sent.digest()
    assert len(decoded) - 1 == times  # the oracle's own unpack aside


def test_an_fp32_update_is_decoded_once_and_others_each_time() -> None:
    plain, small = Update("A", 1.0, pack(MODEL)), Update("A", 1.0, pack(MODEL, "bf16"))

    assert plain.adapter is plain.adapter
    assert small.adapter is not small.adapter
