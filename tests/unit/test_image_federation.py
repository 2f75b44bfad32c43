"""Whole runs on images in this process: rounds, resume to the bit, and what is left behind."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_federation import FakeGrid
from pictures import NETS, TASKS, site_data

from client_app.export import merge_into_base
from client_app.image_nets import load_net
from client_app.models import load_resident
from client_app.site import LocalSite
from fedapp.config import RunConfig
from fedapp.exchange import Action
from fedapp.results import RunFolder
from fedapp.whole_format import load_whole
from server_app.app import run

NAMES = ("north", "south", "west")
SETTINGS = {
    "method": "fedavg",
    "model.trainable": "all",
    "train.batch-size": 4,
    "train.local-epochs": 1,
    "train.learning-rate": 0.01,
    "train.threads": 1,
    "federation.rounds": 2,
    "federation.round-timeout": 20.0,
}
Federate = Callable[..., tuple[RunFolder, FakeGrid]]


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    count = itertools.count()

    def go(task: str, **flat: Any) -> tuple[RunFolder, FakeGrid]:
        place = {"output-dir": str(tmp_path), "name": f"run-{next(count)}"}
        kind = {"model.task": task, "model.source": NETS[task]}
        config = RunConfig.from_flat({**SETTINGS, **kind, **place, **flat})
        grid = FakeGrid(dict.fromkeys(NAMES, 16), state=tmp_path / "state")
        grid.sites = {  # type: ignore[assignment]
            name: LocalSite(site_data(task, name, seed)) for seed, name in enumerate(NAMES)
        }
        again = Path(config.resume) if config.resume else None
        folder = RunFolder.open(again) if again else RunFolder.create(config)
        run(grid, config, folder, 1)
        return folder, grid

    return go


def summary_of(folder: RunFolder) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(folder.summary_file.read_text())
    return summary


@pytest.mark.parametrize("task", TASKS)
def test_the_printed_lines_load_the_model_that_was_tested(federate: Federate, task: str) -> None:
    folder, grid = federate(task)

    card = (folder.adapter / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    assert code.replace("path/to/this/folder", "adapter").strip() in (
        folder.report_file.read_text()
        .replace("&quot;", '"')
        .replace("&#x27;", '"')
        .replace("&#39;", '"')
    )
    found: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(folder.adapter)), found)

    last = [i for i in grid.sent if i.action is Action.EVALUATE][-1]
    resident = load_resident(last.config, TASKS[task])
    resident.parameters.load(last.payloads["adapter"].unpack())
    data = site_data(task)
    batch = resident.task.collate(resident.task.prepare(data.splits["test"]))
    with torch.inference_mode():
        expected = resident.task.output(resident.model, batch)
        assert torch.equal(found["model"](batch["pixel_values"]), expected)

    merged = merge_into_base(folder.path, folder.path / "merged")
    with torch.inference_mode():
        assert torch.equal(
            load_net(str(merged), outputs=len(TASKS[task]))(batch["pixel_values"]), expected
        )
    summary = summary_of(folder)
    measured = "accuracy" if task == "image-classification" else "dice"
    for phase in ("local-only", "received", "personal"):
        assert 0 <= summary["mean"][phase][measured] <= 1
    assert f"| received | {summary['mean']['received'][measured]:.3f}" in card


def test_the_merge_is_the_mean_of_all_weights(federate: Federate) -> None:
    task = "image-classification"
    folder, grid = federate(task, **{"federation.rounds": 1})
    asked = [i for i in grid.sent if i.action is Action.TRAIN]

    updates = [
        LocalSite(site_data(task, i.site, NAMES.index(i.site))).execute(i).payloads["adapter"]
        for i in asked
    ]

    exported = load_whole(folder.adapter)
    for name, array in exported.arrays():
        mean = np.mean([dict(update.unpack().arrays())[name] for update in updates], axis=0)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "flat",
    [
        {},
        {"federation.codec": "int8"},
        {"method": "ditto", "federation.algorithm": "scaffold"},
        {"method": "pflalign", "federation.algorithm": "fedavgm"},
    ],
    ids=["plain", "int8", "ditto, scaffold", "pflalign, fedavgm"],
)
def test_a_resumed_run_ends_with_the_same_bits(
    federate: Federate, tmp_path: Path, flat: dict[str, Any]
) -> None:
    """Under whatever method and algorithm works on whole models."""
    task = "image-classification"
    whole, _ = federate(task, **flat)
    half, _ = federate(task, **flat)
    newest = sorted((half.path / "checkpoint").glob("round-*"))[-1]
    shutil.rmtree(newest)
    shutil.rmtree(half.adapter)

    again, _ = federate(task, **{**flat, "resume": str(half.path), "name": half.path.name})

    assert load_whole(again.adapter).digest() == load_whole(whole.adapter).digest()
    assert summary_of(again)["mean"] == summary_of(whole)["mean"]


def test_the_gradients_of_single_images_are_measured(federate: Federate) -> None:
    folder, _ = federate("image-segmentation", **{"federation.gsnr": 4})

    rows = [row for row in folder.read_metrics() if "gsnr" in row]
    assert rows
