"""bf16 and int8 through the whole round loop: resume, repeats, drop-outs and lost states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_federation import HOSPITALS, FakeGrid, fails, flipped_bit, initial_adapter, silent

from fedapp.codec import CODECS, pack
from fedapp.config import RunConfig
from fedapp.errors import UpdateRefused
from fedapp.exchange import Action, Reply
from fedapp.increments import add
from fedapp.results import RunFolder
from server_app import rounds as rounds_module
from server_app import training_round
from server_app.app import build_strategy, run
from server_app.checkpoint import newest_checkpoint
from server_app.training_round import validate

Settings = Callable[..., RunConfig]
Finished = Callable[..., RunFolder]


class Interrupted(BaseException):
    """Stands for a kill."""


def _stop(*args: Any, **kwargs: Any) -> Any:
    raise Interrupted


def _while_collecting(grid: FakeGrid, patch: pytest.MonkeyPatch) -> None:
    """The sites of round 3 have trained and written; nobody has read their replies."""

    def at_round_3() -> None:
        if any(round == 3 for round, _ in grid.trained()):
            _stop()

    grid.before_pull = at_round_3


def _before_checkpoint(grid: FakeGrid, patch: pytest.MonkeyPatch) -> None:
    original = rounds_module.write_checkpoint

    def at_round_3(folder: Path, checkpoint: Any, keep: int) -> Any:
        return _stop() if checkpoint.round == 3 else original(folder, checkpoint, keep)

    patch.setattr(rounds_module, "write_checkpoint", at_round_3)


def _after_validation(grid: FakeGrid, patch: pytest.MonkeyPatch) -> None:
    original = training_round.TrainingRound._merge

    def at_round_3(self: Any, round: int, *args: Any) -> Any:
        return _stop() if round == 3 else original(self, round, *args)

    patch.setattr(training_round.TrainingRound, "_merge", at_round_3)


def _digest(folder: RunFolder) -> str:
    found: str = json.loads(folder.summary_file.read_text())["adapter_digest"]
    return found


@pytest.mark.parametrize(
    ("method", "point", "lost"),
    [
        ("fedavg", _while_collecting, 0),
        ("fedavg", _before_checkpoint, 1),
        ("svd", _while_collecting, 1),
        ("fedsvd", _before_checkpoint, 0),
        ("subspace-reg", _after_validation, 0),
        ("subspace-reg", _while_collecting, 1),
    ],
)
def test_resume_is_bit_identical(
    settings: Settings, tmp_path: Path, method: str, point: Any, lost: int
) -> None:
    """Also from the checkpoint before the newest, when the newest is lost."""
    common = {
        "method": method,
        "federation__codec": "int8",
        "federation__fraction": 0.75,
        "federation__rounds": 5,
    }
    whole = RunFolder.create(settings(name="whole", **common))
    run(FakeGrid(state=tmp_path / "s1"), settings(name="whole", **common), whole, 1)
    config = settings(name="parts", **common)
    folder, grid = RunFolder.create(config), FakeGrid(state=tmp_path / "s2")
    with pytest.MonkeyPatch.context() as patch:
        point(grid, patch)
        with pytest.raises(Interrupted):
            run(grid, config, folder, 1)
    if lost:
        newest = sorted(folder.checkpoint.glob("round-*"))[-1]
        shutil.rmtree(newest)
    identity = newest_checkpoint(folder.checkpoint).run

    again = config.with_changes({"resume": str(folder.path)})
    run(FakeGrid(state=tmp_path / "s2"), again, RunFolder.open(folder.path), 2)

    assert _digest(folder) == _digest(whole)
    rows = [
        [(row["round"], row["site"], row.get("state_round")) for row in f.read_metrics()]
        for f in (whole, folder)
    ]
    assert rows[0] == rows[1]
    assert any(row[2] for row in rows[0])
    assert newest_checkpoint(folder.checkpoint).run == identity
    for path in (tmp_path / "s2").glob("*/*"):
        assert path.name == identity
        assert len([*path.iterdir()]) <= config.federation.keep_checkpoints + 1


def test_feedback_matters_to_the_bits(finished: Finished, tmp_path: Path) -> None:
    """Otherwise the tests of resume prove nothing."""
    common = {"federation__codec": "int8", "federation__rounds": 3}
    with_it = finished(FakeGrid(state=tmp_path / "s"), name="a", **common)
    without = finished(FakeGrid(), name="b", **common)

    assert _digest(with_it) != _digest(without)


def test_another_run_of_the_same_name_finds_nothing(settings: Settings, tmp_path: Path) -> None:
    digests = []
    for _ in range(2):
        config = settings(federation__codec="int8")
        folder = RunFolder.create(config)
        run(FakeGrid(state=tmp_path / "sites"), config, folder, 1)
        assert {row.get("state_round") for row in folder.read_metrics() if row["round"] == 1} <= {
            0.0,
            None,
        }
        digests.append(_digest(folder))
        shutil.rmtree(folder.path)

    assert digests[0] == digests[1]
    assert len([*(tmp_path / "sites").glob("*/*")]) == 2 * len(HOSPITALS)


@pytest.mark.parametrize("fault", [silent, flipped_bit, fails("DeviceError", "the GPU is gone")])
def test_a_repeated_round_gives_the_same_bits(
    finished: Finished, tmp_path: Path, fault: Any
) -> None:
    """The site has written the state of the round already when it is asked again."""
    common = {"federation__codec": "int8", "federation__max_round_retries": 1}
    plain = finished(FakeGrid(state=tmp_path / "s1"), name="plain", **common)
    grid = FakeGrid(state=tmp_path / "s2")
    grid.inject("Hungary", fault, round=2)
    repeated = finished(grid, name="repeated", **common)

    assert grid.trained().count((2, "Hungary")) == 2
    assert _digest(repeated) == _digest(plain)


def test_a_site_that_drops_out_for_a_round_keeps_its_residual(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid(state=tmp_path / "s")
    grid.inject("Hungary", silent, round=2)

    folder = finished(
        grid,
        federation__codec="int8",
        federation__rounds=4,
        federation__min_replies=3,
        federation__max_round_retries=0,
    )

    rounds = {
        row["round"]: row["state_round"]
        for row in folder.read_metrics()
        if row["site"] == "Hungary" and "state_round" in row
    }
    assert rounds == {1: 0, 3: 2, 4: 3}, "it trained in round 2 and kept that; nobody heard of it"
    assert "is lost" not in capsys.readouterr().out


@pytest.mark.parametrize("resumed", [False, True])
def test_a_lost_state_is_told_of_and_the_run_goes_on(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], resumed: bool
) -> None:
    config = settings(federation__codec="int8", federation__rounds=4)
    folder, grid = RunFolder.create(config), FakeGrid(state=tmp_path / "s")

    def lose(messages: Any) -> None:
        if messages[0].metadata.group_id == "3":
            (site,) = (tmp_path / "s").glob("Hungary-*")
            shutil.rmtree(site)
            grid.before_push = lambda messages: None
            if resumed:
                _stop()

    grid.before_push = lose
    if resumed:
        with pytest.raises(Interrupted):
            run(grid, config, folder, 1)
        again = config.with_changes({"resume": str(folder.path)})
        run(FakeGrid(state=tmp_path / "s"), again, RunFolder.open(folder.path), 2)
    else:
        run(grid, config, folder, 1)

    text = capsys.readouterr().out
    told = "site Hungary, round 3: what it kept after round 2 is lost, it continued from zero"
    assert text.count("is lost") == text.count(told) == 1
    assert folder.read_status()["state"] == "completed"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("method", ["fedavg", "subspace-reg"])
def test_every_site_trains_on_the_coordinators_very_model(
    settings: Settings, tmp_path: Path, method: str, codec: str
) -> None:
    """In fp32 whatever the codec: what is tested in the end is what is exported."""
    config = settings(method=method, federation__codec=codec)
    strategy, models = build_strategy(config), []
    loop = rounds_module.RoundLoop(
        FakeGrid(state=tmp_path / "s"),
        strategy,
        RunFolder.create(config),
        on_round=lambda _, model: models.append(model.digest()),
    )
    loop.run()

    sent = {
        i.round - 1: i.payloads["adapter"]
        for i in loop.grid.sent  # type: ignore[attr-defined]
        if i.action is Action.TRAIN
    }
    tested = [i for i in loop.grid.sent if i.action is Action.EVALUATE]  # type: ignore[attr-defined]
    assert {r: packed.unpack().digest() for r, packed in sent.items()} == dict(
        enumerate(models[:-1])
    )
    assert {i.payloads["adapter"].unpack().digest() for i in tested} == {models[-1]}
    if method == "subspace-reg":
        for pair in sent[2].unpack().pairs.values():
            np.testing.assert_allclose(pair.b_mr.T @ pair.b_mr, np.eye(2), atol=1e-5)


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_an_update_is_judged_as_what_it_makes_of_the_model(settings: Settings, codec: Any) -> None:
    config = settings(federation__codec=codec)
    strategy = build_strategy(config)
    large = initial_adapter(config).map(lambda _, x: np.full_like(x, 9e5))
    strategy.begin(large)

    def reply(value: float) -> Reply:
        increment = large.map(lambda _, x: np.full_like(x, value))
        payloads = {"adapter": pack(increment, codec)}
        return Reply("Hungary", 1, Action.TRAIN, payloads=payloads, weight=3.0)

    update = validate(strategy, 1, reply(-8e5))
    assert update.adapter.digest() == add(large, update.packed.unpack()).digest()
    with pytest.raises(UpdateRefused) as caught:
        validate(strategy, 1, reply(2e5))
    assert caught.value.reason == "too-large"
