"""Whole runs in one process with the tiny encoder, one of four sites faulty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.local_grid import run_here

pytestmark = pytest.mark.slow  # three seconds a run

BAD = {"faults.sites": "b", "faults.attack": "scaling", "faults.factor": -20.0}


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing it takes most of such a run's time."""
    monkeypatch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")


@pytest.fixture
def received(tmp_path: Path) -> Any:
    """Run with some settings on records that anybody can learn; mean accuracy of honest sites."""
    rows = ["text,label,site"]
    for site in "abcd":
        for i in range(24):
            words = "sound and calm" if i % 2 else "pain and fever"
            rows.append(f"{words} {site} {i},{'healthy' if i % 2 else 'ill'},{site}")
    source = tmp_path / "records.csv"
    source.write_text("\n".join(rows) + "\n")

    def run(**settings: Any) -> float:
        given = {key.replace("__", ".").replace("_", "-"): v for key, v in settings.items()}
        base = {
            "data.source": str(source),
            "data.labels": "healthy,ill",
            "model.source": "embedded:tiny-encoder",
            "model.max-length": 16,
            "lora.rank": 2,
            "lora.targets": "query",
            "train.batch-size": 4,
            "train.local-epochs": 1,
            "train.learning-rate": 0.02,
            "federation.rounds": 3,
            "federation.local-only": False,
        }
        summary, _ = run_here({**base, **given})
        return float(summary["mean"]["received"]["accuracy"])

    return run


def test_one_of_four_ruins_the_mean_and_neither_krum_nor_the_median(received: Any) -> None:
    honest = received(method="fedavg")
    assert honest >= 0.9

    assert received(method="fedavg", **BAD) <= honest - 0.2
    assert received(method="krum", krum__faulty=1, **BAD) >= honest - 0.1
    assert received(method="median", **BAD) >= honest - 0.1
