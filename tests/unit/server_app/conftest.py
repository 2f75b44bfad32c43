from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_federation import FakeGrid

from fedapp.config import RunConfig
from fedapp.results import RunFolder
from server_app.app import run


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has tests of its own, and drawing it takes most of a run's time."""
    monkeypatch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to start anew here before a round is repeated."""
    monkeypatch.setattr("server_app.training_round.PAUSE_SECONDS", 0.0)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., RunConfig]:
    """Settings of a small quick run; keyword arguments use ``__`` for dots."""

    def make(**changes: Any) -> RunConfig:
        quick = {
            "method": "fedavg",
            "output-dir": str(tmp_path / "runs"),
            "name": "run",
            "lora.rank": 2,
            "federation.rounds": 3,
            "federation.round-timeout": 0.3,
            "federation.connect-timeout": 0.3,
            "federation.handshake-timeout": 0.3,
        }
        given = {key.replace("__", ".").replace("_", "-"): v for key, v in changes.items()}
        return RunConfig.from_flat({**quick, **given})

    return make


@pytest.fixture
def finished(settings: Callable[..., RunConfig]) -> Callable[..., RunFolder]:
    """Run a federation to its end (or error) and return its folder."""

    def go(
        grid: FakeGrid | None = None, config: RunConfig | None = None, **changes: Any
    ) -> RunFolder:
        config = config or settings(**changes)
        folder = RunFolder.create(config)
        run(grid or FakeGrid(), config, folder, run_id=11)
        return folder

    return go
