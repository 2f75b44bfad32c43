"""LIGHTYEAR under Flower's simulation engine and by autonomous peers; and a run of segmentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from interface import ROOT
from peer_drivers import check_same, check_scored, run_autonomous
from pictures import CLASSES, LABELS, NETS, save_pictures

from fedapp.config import RunConfig
from fedapp.results import RunFolder

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "method": "lightyear",
    "federation.rounds": 2,
    "federation.local-only": False,
    "train.threads": 1,
    "train.device": "cpu",
    "train.local-epochs": 1,
    "train.batch-size": 8,
}
TEXTS = {"model.source": "embedded:tiny-encoder", "model.max-length": 32, "data.max-examples": 20}
CLINICS, CORNERS = (
    ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"],
    ["east", "north", "south"],
)


def images(place: Path, task: str) -> dict[str, Any]:
    labels = LABELS if task == "image-classification" else CLASSES
    return {
        "model.task": task, "model.source": NETS[task], "model.trainable": "all",
        "data.source": str(save_pictures(place / "pictures.npz", CORNERS)),
        "data.partition": "natural", "data.labels": ",".join(labels),
    }  # fmt: skip


def simulated(desk: Desk, name: str, settings: dict[str, Any]) -> RunFolder:
    """Run with Flower's simulation engine: Ray workers, messages, a coordinator."""
    given = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    done = desk.fedapp("run", ROOT, "--name", name, "-c", given)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return RunFolder(desk.here / "runs" / name)


@pytest.mark.parametrize("trained", ["lora", "all"])
def test_the_simulation_engine_and_autonomous_peers_give_the_same_models(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: str
) -> None:
    more = TEXTS if trained == "lora" else images(tmp_path, "image-classification")
    sites = CLINICS if trained == "lora" else CORNERS
    settings = {**QUICK, **more}
    coordinated = simulated(desk, trained, settings)

    run_autonomous(tmp_path, RunConfig.from_flat(settings), sites, monkeypatch)

    check_same(coordinated, tmp_path, sites)


def test_hospitals_learn_to_segment_from_those_they_believe(desk: Desk, tmp_path: Path) -> None:
    settings = {
        **QUICK, **images(tmp_path, "image-segmentation"),
        "federation.rounds": 4, "train.learning-rate": 0.02, "p2p.rows": 64,
    }  # fmt: skip
    folder = simulated(desk, "segmented", settings)

    summary = json.loads(folder.summary_file.read_text())
    assert sorted(summary["sites"]) == CORNERS
    for phases in summary["sites"].values():
        assert set(phases) == {"personal"}
        assert set(phases["personal"]) >= {"dice", "iou", "pixel_accuracy"}
        assert phases["personal"]["dice"] > 0.7, "a bright square is found"
    rows = [row for row in folder.read_metrics() if row["site"] and row["phase"] == "personal"]
    assert {row["site"] for row in rows if "dice" in row} == set(CORNERS)
    check_scored(folder, CORNERS, rounds=4)
    page = folder.report_file.read_text(encoding="utf-8")
    assert "calibrated agreement at least 0.4" in page
