"""The gradients' signal to noise ratio against a loop of plain backward passes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_residents import TEXTS, items_of, tiny_resident

from benchmarks.local_grid import LocalGrid
from client_app.algorithms.compose import build_rule
from client_app.gsnr import EPSILON, LARGEST, MOST_LAYERS, _by_layer, measure_gsnr
from client_app.models import ResidentModel, load_resident
from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.results import RunFolder
from server_app import app

CHAT = [
    {"messages": [{"role": "user", "content": question}], "response": answer}
    for question, answer in zip(
        TEXTS, ["no", "yes, heart disease", "12 years", "a", "none at all"], strict=True
    )
]
CHOICES = [
    {"context": text, "choices": ["no", "yes, at rest", "maybe"], "label": n % 3}
    for n, text in enumerate(TEXTS)
]
DECODER = {
    "model.source": "embedded:tiny-decoder",
    "model.task": "causal-lm",
    "model.max-length": 32,
    "lora.targets": "q_proj,down_proj",
    "lora.rank": 2,
    "train.generate-tokens": 4,
}


def started(resident: ResidentModel, seed: int = 0) -> Adapter:
    """Load an adapter none of whose numbers is zero."""
    rng = np.random.default_rng(seed)
    adapter = resident.parameters.initial(0).map(
        lambda _, x: (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    )
    resident.parameters.load(adapter)
    return adapter


def by_loop(resident: ResidentModel, items: Any, names: list[str]) -> dict[str, np.ndarray]:
    """r of every number by autograd, a record at a time; NaN where no record moves it."""
    arrays = dict(resident.parameters.named_arrays())
    rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
    resident.model.eval()
    for item in items:
        loss = resident.task.loss(resident.model, resident.task.collate([item]))
        grads = torch.autograd.grad(loss, [arrays[n] for n in names])
        for name, grad in zip(names, grads, strict=True):
            rows[name].append(grad.double().numpy().ravel())
    ratios = {}
    for name, parts in rows.items():
        g = np.stack(parts)
        ratio = np.mean(g, axis=0) ** 2 / (np.var(g, axis=0) + EPSILON)
        ratios[name] = np.where(np.any(g != 0, axis=0), ratio, np.nan)
    return ratios


def live(ratios: dict[str, np.ndarray], part: str = "") -> np.ndarray:
    values = np.concatenate([r for name, r in ratios.items() if part in name])
    return values[~np.isnan(values)]


def measured(resident: ResidentModel, items: Any, config: RunConfig) -> dict[str, float]:
    rule = build_rule(config, resident.parameters)
    return measure_gsnr(resident, items, rule, config)


@pytest.mark.parametrize("batch", [2, 16])
def test_of_an_encoder_with_a_head(tmp_path: Path, batch: int) -> None:
    flat = {"federation.gsnr": 5, "train.batch-size": batch, "method": "fedavg"}
    resident, config = tiny_resident(tmp_path, "bert", "query,output.dense", **flat)
    before = started(resident)
    items = items_of(resident)

    found = measured(resident, items, config)

    names = [name for name, _ in resident.parameters.named_arrays()]
    ratios = by_loop(resident, items, names)
    assert found["gsnr"] == pytest.approx(live(ratios).mean(), rel=1e-3)
    assert found["gsnr_median"] == pytest.approx(np.median(live(ratios)), rel=1e-3)
    layers = {name.split(".layer.")[1].split(".")[0] for name in names if ".layer." in name}
    for layer in layers:
        mean = live(ratios, f".layer.{layer}.").mean()
        assert found[f"gsnr_layer_{layer}"] == pytest.approx(mean, rel=1e-3)
    assert found["gsnr_heads"] == pytest.approx(live(ratios, "classifier").mean(), rel=1e-3)
    assert found["gsnr_records"] == 5
    assert resident.parameters.read().digest() == before.digest()
    assert all(p.grad is None for _, p in resident.parameters.named_arrays())
    assert not any(module._forward_hooks for module in resident.model.modules())


def test_of_a_decoder_whose_responses_differ_in_length() -> None:
    """A record's loss is the mean over its own tokens, however long the others' are."""
    config = RunConfig.from_flat({**DECODER, "method": "fedavg", "federation.gsnr": 64})
    resident = load_resident(config, [])
    started(resident)
    items = resident.task.prepare(CHAT)
    assert len({item["terms"] for item in items}) > 2

    found = measured(resident, items, config)

    ratios = by_loop(resident, items, [n for n, _ in resident.parameters.named_arrays()])
    assert found["gsnr"] == pytest.approx(live(ratios).mean(), rel=2e-3)
    assert found["gsnr_median"] == pytest.approx(np.median(live(ratios)), rel=2e-3)
    assert found["gsnr_records"] == len(CHAT)
    assert "gsnr_heads" not in found


def test_where_a_record_is_several_rows_it_is_computed_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flat = {"model.source": "embedded:tiny-encoder", "model.task": "multiple-choice"}
    more = {"model.max-length": 32, "lora.targets": "query", "lora.rank": 2, "federation.gsnr": 5}
    config = RunConfig.from_flat({**flat, **more, "method": "fedavg"})
    resident = load_resident(config, [])
    started(resident)
    items = resident.task.prepare(CHOICES)

    with caplog.at_level(logging.INFO, "client_app.gsnr"):
        found = measured(resident, items, config)

    ratios = by_loop(resident, items, [n for n, _ in resident.parameters.named_arrays()])
    assert found["gsnr"] == pytest.approx(live(ratios).mean(), rel=1e-3)
    assert "one by one: Linear has 15 rows of 5 records" in caplog.text


def test_only_what_is_trained_and_moves_counts(tmp_path: Path) -> None:
    flat = {"federation.gsnr": 5, "method": "ffa-lora"}
    resident, config = tiny_resident(tmp_path, "bert", "query", **flat)
    started(resident)
    items = items_of(resident)

    found = measured(resident, items, config)
    names = [n for n, _ in resident.parameters.named_arrays() if not n.endswith("lora_A")]
    assert found["gsnr"] == pytest.approx(live(by_loop(resident, items, names)).mean(), rel=1e-3)

    # While B is zero no record moves A: it has no ratio, rather than one of zero.
    resident.parameters.load(resident.parameters.initial(0))
    whole = measured(resident, items, config.with_changes({"method": "fedavg"}))
    assert whole["gsnr"] == pytest.approx(measured(resident, items, config)["gsnr"], rel=1e-6)


def test_records_that_agree_have_a_ratio_that_is_cut(tmp_path: Path) -> None:
    resident, config = tiny_resident(tmp_path, "bert", "query", **{"federation.gsnr": 4})
    started(resident)
    alike = items_of(resident, ["no chest pain"] * 4)
    noisy = measured(resident, items_of(resident)[:4], config)["gsnr_median"]

    assert noisy * 1e3 < measured(resident, alike, config)["gsnr_median"] <= LARGEST


def test_it_is_off_by_default_and_needs_two_records(tmp_path: Path) -> None:
    resident, config = tiny_resident(tmp_path, "bert", "query")
    assert measured(resident, items_of(resident), config) == {}
    on = config.with_changes({"federation.gsnr": 64})
    assert measured(resident, items_of(resident)[:1], on) == {}


def test_many_layers_are_spread() -> None:
    ratios = {f"model.layers.{n}.q.lora_A": np.full(3, float(n)) for n in range(100)}
    found = _by_layer(ratios)
    assert len(found) == MOST_LAYERS
    assert all(value == int(name.removeprefix("gsnr_layer_")) for name, value in found.items())


def test_a_run_reports_it_and_trains_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")
    digests, rows = [], []
    for records in (0, 8):
        flat = {
            **DECODER,
            "method": "fedavg",
            "data.source": "embedded:instructions",
            "data.max-examples": 20,
            "federation.rounds": 2,
            "federation.local-only": False,
            "federation.gsnr": records,
            "train.generate-tokens": 0,
            "train.local-epochs": 1,
            "train.max-steps": 1,
            "train.threads": 1,
            "name": f"probe-{records}",
            "output-dir": str(tmp_path),
        }
        config = RunConfig.from_flat(flat)
        folder = RunFolder.create(config)
        app.run(LocalGrid(), config, folder, 1)
        digests.append(json.loads(folder.summary_file.read_text())["adapter_digest"])
        rows.append(folder.read_metrics())

    assert digests[0] == digests[1]
    assert not any("gsnr" in key for row in rows[0] for key in row)
    for number in (1, 2):
        mine = [r for r in rows[1] if r["round"] == number and r["phase"] == "personal"]
        sites = {r["site"]: r for r in mine}
        (federation,) = (r for r in rows[1] if r["round"] == number and r["phase"] == "federation")
        for key in ("gsnr", "gsnr_median", "gsnr_layer_0"):
            mean = np.mean([row[key] for row in sites.values()])
            assert federation[key] == pytest.approx(mean), key
        assert federation["gsnr_records"] == 8
