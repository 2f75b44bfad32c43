"""Whole runs in this process with real sites on a tiny encoder: dysco, random-boost and flora."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_federation import FakeGrid, silent

from client_app.data import SiteData
from client_app.folding import Folding
from client_app.models import load_resident
from client_app.site import LocalSite
from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.exchange import Action
from fedapp.peft_format import load_peft
from fedapp.results import RunFolder
from server_app.app import run

SETTINGS = {
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 16,
    "lora.rank": 2,
    "lora.alpha": 4.0,
    "train.batch-size": 4,
    "train.local-epochs": 1,
    "train.learning-rate": 0.02,
    "train.threads": 1,
    "federation.rounds": 3,
    "federation.local-only": False,
    "federation.round-timeout": 5.0,
}
NAMES = ("north", "south", "west")
METHODS = ("dysco", "random-boost", "flora")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr("server_app.training_round.PAUSE_SECONDS", 0.0)


def data_of(site: str) -> SiteData:
    texts = ["chest pain", "no pain", "high pressure at rest", "fever", "normal"]
    words = itertools.cycle(texts[NAMES.index(site) :] + texts)
    records = [{"text": f"{next(words)} {i}", "label": i % 2} for i in range(14)]
    splits = {"train": records[:8], "validation": records[8:11], "test": records[11:]}
    return SiteData(site=site, label_map=["healthy", "ill"], splits=splits, notes=[])


def grid_of() -> FakeGrid:
    grid = FakeGrid(dict.fromkeys(NAMES, 8))
    grid.sites = {name: LocalSite(data_of(name)) for name in NAMES}  # type: ignore[misc]
    return grid


@pytest.fixture
def federate(tmp_path: Path) -> Callable[..., tuple[RunFolder, FakeGrid]]:
    count = itertools.count()

    def go(grid: FakeGrid | None = None, **flat: Any) -> tuple[RunFolder, FakeGrid]:
        place = {"output-dir": str(tmp_path), "name": f"run-{next(count)}"}
        config = RunConfig.from_flat({**SETTINGS, **place, **flat})
        grid = grid or grid_of()
        again = Path(config.resume) if config.resume else None
        folder = RunFolder.open(again) if again else RunFolder.create(config)
        run(grid, config, folder, 1)
        return folder, grid

    return go


def summary_of(folder: RunFolder) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(folder.summary_file.read_text())
    return summary


def rows_of(folder: RunFolder) -> list[dict[str, Any]]:
    rows = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.mark.parametrize("method", METHODS)
def test_the_exported_adapter_is_the_model_that_was_tested(
    federate: Callable[..., tuple[RunFolder, FakeGrid]], method: str
) -> None:
    """Folded weights and one adapter of all rounds: the same function to 1e-5."""
    folder, grid = federate(method=method)

    exported = load_peft(folder.adapter)
    rank = next(iter(exported.pairs.values())).rank
    config = RunConfig.from_flat({**SETTINGS, "lora.rank": rank, "lora.alpha": float(rank)})
    last = [i for i in grid.sent if i.action is Action.EVALUATE][-1]
    payloads = {name: packed.unpack() for name, packed in last.payloads.items()}
    data = data_of(last.site)
    batch_of = load_resident(config, data.label_map).task
    batch = batch_of.collate(batch_of.prepare(data.splits["test"]))

    def logits(resident: Any) -> torch.Tensor:
        with torch.inference_mode():
            return torch.as_tensor(resident.task.output(resident.model, batch)).clone()

    stacked = load_resident(config, data.label_map)
    stacked.parameters.load(exported)
    expected = logits(stacked)
    folded = load_resident(RunConfig.from_flat(SETTINGS), data.label_map)
    folded.parameters.load(payloads["adapter"])
    with Folding(folded) as folding:
        folding.apply(payloads["folded"])
        got = logits(folded)
    assert float((got - expected).abs().max()) < 1e-5
    folded.parameters.load(payloads["adapter"])
    assert float((logits(folded) - expected).abs().max()) > 1e-3, "without what was folded"
    assert summary_of(folder)["export"]["relative_error"] < 1e-6
    assert [row["truncation_error"] for row in rows_of(folder)] == 3 * [0.0]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm", "fedprox", "scaffold", "fednova"])
def test_dysco_under_every_algorithm_by_one_setting(
    federate: Callable[..., tuple[RunFolder, FakeGrid]], tmp_path: Path, algorithm: str
) -> None:
    grid = grid_of()
    grid.state = tmp_path / "states"
    flat = {"method": "dysco", "federation.algorithm": algorithm, "federation.rounds": 2}
    folder, _ = federate(grid, **flat)
    for row in rows_of(folder):
        assert (row["replies"], row["missing"]) == (3, {})
        assert 0 < row["round_norm"] <= row["folded_norm"] * 3
        assert 0 < row["insensitive_share"] < 1
    assert set(summary_of(folder)["mean"]) == {"received", "personal"}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_interrupted_continues_bit_for_bit(
    federate: Callable[..., tuple[RunFolder, FakeGrid]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """The second process starts from a resident base that others have used meanwhile."""
    flat = {"method": method, "federation.interference": True}
    whole, _ = federate(**flat)
    grid = grid_of()

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    grid.inject("west", kill, round=3)
    with pytest.raises(Killed):
        federate(grid, **flat)
    path = Path(grid.sent[-1].config.output_dir or whole.path.parent) / "run-1"
    federate(method="fedavg", **{"federation.rounds": 1})

    resumed, _ = federate(**flat, resume=str(path))

    assert summary_of(whole)["adapter_digest"] == summary_of(resumed)["adapter_digest"]
    assert rows_of(whole) == rows_of(resumed)


def test_interference_is_reported_with_and_without_dysco(
    federate: Callable[..., tuple[RunFolder, FakeGrid]],
) -> None:
    for method in ("fedavg", "ffa-lora", "dysco"):
        folder, _ = federate(method=method, **{"federation.interference": True})
        first, *more = rows_of(folder)
        assert "interference" not in first
        for row in more:
            assert row["interference"] > 0
            assert row["own_effect"] > 0
            assert row["interference_ratio"] == pytest.approx(
                row["interference"] / row["own_effect"]
            )


def test_of_products_that_sites_keep_to_themselves_there_is_no_interference(
    federate: Callable[..., tuple[RunFolder, FakeGrid]], tmp_path: Path
) -> None:
    grid = grid_of()
    grid.state = tmp_path / "states"
    flat = {"federation.interference": True, "federation.rounds": 2}
    folder, _ = federate(grid, method="fedsa-lora", **flat)
    assert [(row["replies"], "interference" in row) for row in rows_of(folder)] == 2 * [(3, False)]
    assert all(set(i.payloads) == {"adapter"} for i in grid.sent if i.action is Action.TRAIN)


def test_a_site_that_was_away_trains_on_the_model_of_the_others(
    federate: Callable[..., tuple[RunFolder, FakeGrid]],
) -> None:
    grid = grid_of()
    for round in (1, 2):
        for action in (Action.BASES, Action.TRAIN):
            grid.inject("west", silent, round=round, action=action, times=3)
    flat = {"federation.min-replies": 2, "federation.round-timeout": 0.2}
    folder, _ = federate(grid, method="dysco", **flat)
    assert [row["replies"] for row in rows_of(folder)] == [2, 2, 3]
    rows = [r for r in folder.read_metrics() if r["round"] == 3 and r["phase"] == "received"]
    assert {row["site"] for row in rows} == set(NAMES)


def test_no_activation_and_no_gram_leaves(
    federate: Callable[..., tuple[RunFolder, FakeGrid]],
) -> None:
    """Before it trains a site sends one orthonormal q x n matrix a layer, and its metrics."""
    sent: list[Any] = []
    grid = grid_of()

    def note(instruction: Any, reply: Any) -> Any:
        sent.append(reply)
        return reply

    grid.inject("north", note, action=Action.BASES)
    federate(grid, method="dysco", **{"federation.rounds": 1})
    (reply,) = sent
    assert set(reply.payloads) == {"bases"}
    numbers = {"seconds", "evaluation_seconds", "basis_tokens", "insensitive_share"}
    assert set(reply.numbers) == numbers
    assert set(reply.metrics) == {"received/validation"}
    assert (reply.description, reply.failure) == ({}, None)
    bases: Adapter = reply.payloads["bases"].unpack()
    assert {rows.shape for rows in bases.tensors.values()} == {(2, 64)}
    for rows in bases.tensors.values():
        np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-6)
