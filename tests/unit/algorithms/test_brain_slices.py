"""LIGHTYEAR learns to segment the slices of a brain with the small U-Net, sites being its slabs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peer_drivers import check_scored, ledgers

from benchmarks.local_grid import LocalGrid
from client_app.data.sources import mni
from client_app.data.sources.pinned import pinned_path
from fedapp.config import RunConfig
from fedapp.results import RunFolder
from server_app import app

SLABS = [f"slab-{number}" for number in (1, 2, 3, 4)]


@pytest.mark.slow
@pytest.mark.skipif(not pinned_path(mni.WHEEL).is_file(), reason="needs the files of `make images`")
def test_slabs_of_a_brain_learn_from_those_they_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(app, "InMemoryGrid", LocalGrid)
    settings: dict[str, Any] = {
        "method": "lightyear", "model.task": "image-segmentation",
        "model.source": "embedded:tiny-unet", "model.trainable": "all",
        "data.source": "embedded:mni", "train.learning-rate": 0.003, "train.local-epochs": 2,
        "train.batch-size": 4, "train.threads": 1, "train.device": "cpu",
        "federation.rounds": 10,
        "output-dir": str(tmp_path), "name": "brain",
    }  # fmt: skip
    config = RunConfig.from_flat(settings)
    folder = RunFolder.create(config)

    app.run(LocalGrid(), config, folder, 1)

    summary = json.loads(folder.summary_file.read_text())
    assert sorted(summary["sites"]) == SLABS
    dice = {phase: numbers["dice"] for phase, numbers in summary["mean"].items()}
    assert dice["personal"] > 0.8
    assert dice["personal"] > dice["local-only"] + 0.03  # .89 and .82
    check_scored(folder, SLABS, rounds=10)
    heard = [one for entries in ledgers(folder).values() for e in entries for one in e.heard]
    assert sum(one.accepted for one in heard) > len(heard) / 2
