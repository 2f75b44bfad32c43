"""More natural sites than simulated nodes: all take part, and every worker has something to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from desk import Desk
from interface import ROOT

from fedapp.cli.resources import count_cpus

pytestmark = pytest.mark.slow

HOSPITALS = [f"Hospital {number:02d}" for number in range(1, 21)]
QUICK = (
    "method=fedavg model.source=embedded:tiny-encoder data.source=d.csv federation.rounds=1 "
    "federation.local-only=false train.device=cpu train.local-epochs=20"
)


def test_twenty_hospitals_on_four_nodes_keep_the_workers_busy(desk: Desk) -> None:
    desk.records(HOSPITALS, 40)

    done = desk.fedapp("run", ROOT, "--name", "many", "-c", QUICK)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Simulation: 4 nodes" in done.stdout
    folder = desk.here / "runs" / "many"
    assert sorted(json.loads((folder / "summary.json").read_text())["sites"]) == HOSPITALS
    assert base_loads(folder / "progress.jsonl") == {1}
    spans = training_spans(folder / "progress.jsonl")
    assert sorted(spans) == HOSPITALS
    assert most_at_once(spans) == min(4, count_cpus())


def base_loads(progress: Path) -> set[int]:
    """How often the worker of an event has built a base model, at whatever site it was."""
    return {event["base_loads"] for event in map(json.loads, progress.read_text().splitlines())}


def training_spans(progress: Path) -> dict[str, tuple[float, float]]:
    """Time of the first and the last step of every site."""
    spans: dict[str, tuple[float, float]] = {}
    for event in map(json.loads, progress.read_text().splitlines()):
        first, _ = spans.get(event["site"], (event["time"], 0.0))
        spans[event["site"]] = (first, event["time"])
    return spans


def most_at_once(spans: dict[str, tuple[float, float]]) -> int:
    """The largest number of spans that share a moment."""
    starts = [first for first, _ in spans.values()]
    return max(sum(first <= moment <= last for first, last in spans.values()) for moment in starts)
