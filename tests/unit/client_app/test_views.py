"""What a site sees of a model, against the task's own outputs and a plain loop."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from choice_models import QUESTIONS
from pictures import NETS, TASKS, records
from tiny_residents import items_of, tiny_resident

from client_app.data import SiteData
from client_app.evaluation import evaluate
from client_app.models import load_resident
from client_app.site import LocalSite
from client_app.tasks.classification_scores import ClassificationScores
from client_app.views import Viewer
from fedapp.attacks import random_weights
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.exchange import Action, Instruction, Reply
from fedapp.ntk import LARGEST_FULL_KERNEL
from fedapp.peer_rules.base import View


def view_of(resident: Any, config: RunConfig, items: Any, **flat: Any) -> tuple[View, Any]:
    """The view of a model that the resident does not hold, and the model."""
    config = config.with_changes(flat)
    model = random_weights(resident.parameters.initial(3), 5)
    viewer = Viewer(resident, items, config, "Bern")
    resident.parameters.load(resident.parameters.initial(0))
    return viewer(model), model


def in_order(view: View, expected_nc: torch.Tensor) -> None:
    """The view's rows are the expected ones; batches go from long to short."""
    got = view.logits_nc[np.lexsort(view.logits_nc.T)]
    wanted = expected_nc.numpy()[np.lexsort(expected_nc.numpy().T)]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "gpt2", "llama"])
def test_features_are_what_makes_the_logits_of_every_record(tmp_path: Path, family: str) -> None:
    resident, config = tiny_resident(tmp_path, family)
    items = items_of(resident)
    view, model = view_of(resident, config, items)

    resident.parameters.load(model)
    with torch.inference_mode():
        rows = [resident.task.output(resident.model, resident.task.collate([i])) for i in items]
    in_order(view, torch.cat(rows))
    layer: Any = resident.task.last_layer(resident.model)  # type: ignore[attr-defined]
    weight_cd = layer.weight.detach().numpy()
    bias = 0 if layer.bias is None else layer.bias.detach().numpy()
    np.testing.assert_allclose(view.features_nd @ weight_cd.T + bias, view.logits_nc, atol=1e-5)
    assert view.has_bias == (family not in ("gpt2", "llama")), "decoders score without a bias"
    assert view.labels_n.tolist() == [0] * len(items)


def test_only_some_records_are_looked_at_always_the_same(tmp_path: Path) -> None:
    resident, config = tiny_resident(tmp_path, "bert")
    items = items_of(resident)
    all_of_them, _ = view_of(resident, config, items)
    some, _ = view_of(resident, config, items, **{"p2p.records": 3})
    again, _ = view_of(resident, config, items, **{"p2p.records": 3})

    assert len(some.logits_nc) == 3
    np.testing.assert_array_equal(some.features_nd, again.features_nd)
    rows = {tuple(np.round(row, 4)) for row in all_of_them.logits_nc.tolist()}
    assert {tuple(np.round(row, 4)) for row in some.logits_nc.tolist()} <= rows


def test_the_loss_is_that_of_an_evaluation_and_takes_part_in_no_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, config = tiny_resident(tmp_path, "bert")
    items = items_of(resident)
    model = random_weights(resident.parameters.initial(3), 5)
    viewer = Viewer(resident, items, config, "Bern")
    loss = viewer.loss(model)
    resident.parameters.load(model)
    expected = evaluate(resident, items, config, resident.device)["loss"]
    monkeypatch.setattr(ClassificationScores, "update", None)

    assert loss == pytest.approx(expected, rel=1e-5)
    assert len(viewer(model).labels_n) == len(items)
    assert math.isnan(Viewer(resident, [], config, "Bern").loss(model))


@pytest.mark.parametrize("task", list(TASKS))
def test_of_an_image_the_rows_are_labels_or_pixels(task: str) -> None:
    flat = {"method": "lightyear", "model.trainable": "all", "model.source": NETS[task]}
    config = RunConfig.from_flat({"model.task": task, **flat, "p2p.rows": 40})
    resident = load_resident(config, TASKS[task])
    items = resident.task.prepare(records(task, 6))
    view, model = view_of(resident, config, items)

    resident.parameters.load(model)
    batch = resident.task.collate(items)
    with torch.inference_mode():
        logits = resident.task.output(resident.model.eval(), batch)
    every_nc = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    labels_n = batch["labels"].flatten()
    assert len(view.labels_n) == min(len(labels_n), 40)
    near = torch.cdist(torch.from_numpy(view.logits_nc).double(), every_nc.double()).min(dim=1)
    assert near.values.max() < 1e-4
    counted = np.bincount(view.labels_n, minlength=logits.shape[1])
    assert (counted <= np.bincount(labels_n.numpy(), minlength=logits.shape[1])).all()
    layer: Any = resident.task.last_layer(resident.model)  # type: ignore[attr-defined]
    weight_cd = layer.weight.detach().numpy().reshape(logits.shape[1], -1)
    found_nc = view.features_nd @ weight_cd.T + layer.bias.detach().numpy()
    np.testing.assert_allclose(found_nc, view.logits_nc, atol=1e-4)
    assert view.has_bias


TEXTS = [
    {"messages": [{"role": "user", "content": f"man {n}, old?"}], "response": f"{n} years " * n}
    for n in (1, 3, 2)
]
DECODER = {
    "model.source": "embedded:tiny-decoder", "model.task": "causal-lm", "model.max-length": 64,
    "train.generate-tokens": 4, "train.eval-batch-size": 2, "lora.targets": "q_proj",
    "lora.rank": 2,
}  # fmt: skip


def test_of_a_language_model_the_rows_are_the_places_of_response_tokens() -> None:
    config = RunConfig.from_flat(DECODER)
    resident = load_resident(config, [])
    items = resident.task.prepare(TEXTS)
    view, model = view_of(resident, config, items)

    resident.parameters.load(model)
    rows, labels = [], []
    for item in items:  # one at a time, nothing padded
        ids = item["input_ids"].long()
        with torch.inference_mode():
            logits = resident.model(input_ids=ids[None, :-1]).logits[0]
        rows.append(logits[-item["terms"] :].float())
        labels += ids[-item["terms"] :].tolist()
    in_order(view, torch.cat(rows))
    assert sorted(view.labels_n.tolist()) == sorted(labels)
    assert not view.has_bias, "an output layer has none"
    fewer, _ = view_of(resident, config, items, **{"p2p.rows": 4})
    assert fewer.features_nd.shape == (4, view.features_nd.shape[1])


@pytest.mark.parametrize("source", ["embedded:tiny-encoder", "embedded:tiny-decoder"])
def test_of_multiple_choice_the_rows_are_pairs_or_tokens_of_choices(source: str) -> None:
    targets = "query" if source.endswith("encoder") else "q_proj"
    config = RunConfig.from_flat(
        {"model.source": source, "model.task": "multiple-choice", "lora.targets": targets,
         "model.max-length": 64, "lora.rank": 2, "train.eval-batch-size": 2}
    )  # fmt: skip
    resident = load_resident(config, [])
    items = resident.task.prepare(QUESTIONS)
    view, model = view_of(resident, config, items)

    choices = sum(len(question["choices"]) for question in QUESTIONS)
    resident.parameters.load(model)
    if source.endswith("encoder"):
        assert view.logits_nc.shape == (choices, 1)
        assert view.labels_n.sum() == len(QUESTIONS)
        scores = []
        with torch.inference_mode():
            for item in items:
                row = resident.task.output(resident.model, resident.task.collate([item]))
                scores += row[0].tolist()
        np.testing.assert_allclose(sorted(view.logits_nc[:, 0]), sorted(scores), atol=1e-5)
        return
    tokens = sum(len(choice) for item in items for choice in item["choices"])
    assert len(view.logits_nc) == tokens
    logs = view.logits_nc - np.log(np.exp(view.logits_nc).sum(axis=1, keepdims=True))
    total = 0.0
    with torch.inference_mode():
        for item in items:
            row = resident.task.output(resident.model, resident.task.collate([item]))
            units = torch.tensor(item["units"])
            total += float((row[0] * units).sum())
    assert logs[np.arange(tokens), view.labels_n].sum() == pytest.approx(total, rel=1e-3)


def test_a_kernel_too_large_is_refused_when_the_site_describes_itself() -> None:
    splits = {"train": TEXTS * 2, "validation": TEXTS, "test": TEXTS}
    site = LocalSite(SiteData("Bern", [], splits, task="causal-lm"))

    def described(**flat: Any) -> Reply:
        full = {**DECODER, "method": "lightyear", "lightyear.agreement": "softmax-full", **flat}
        config = RunConfig.from_flat(full)
        return site.execute(Instruction(Action.DESCRIBE, "Bern", config))

    outputs = load_resident(RunConfig.from_flat(DECODER), []).model.config.vocab_size
    most = LARGEST_FULL_KERNEL // outputs
    refused = described(**{"p2p.rows": most + 1}).failure
    assert refused is not None
    assert refused.kind == "ConfigError"
    assert f"at most {LARGEST_FULL_KERNEL}, got {(most + 1) * outputs}; lower" in refused.message
    assert described(**{"p2p.rows": most}).failure is None
    assert described(**{"lightyear.agreement": "softmax-trace"}).failure is None


def test_no_record_is_no_row(tmp_path: Path) -> None:
    resident, config = tiny_resident(tmp_path, "bert")
    view, _ = view_of(resident, config, [])
    assert view.features_nd.shape == (0, 1)


def test_a_task_without_a_last_layer_is_refused(tmp_path: Path) -> None:
    resident, config = tiny_resident(tmp_path, "bert")
    other = SimpleNamespace(**{**vars(resident), "task": object()})
    with pytest.raises(ConfigError, match=r"of model\.task sequence-classification cannot be"):
        Viewer(other, [], config, "Bern")  # type: ignore[arg-type]
