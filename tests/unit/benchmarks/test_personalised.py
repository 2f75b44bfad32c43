"""The benchmark of personalised methods: grids of one size, choices by validation, its clients."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import instruction_clients as clients
from benchmarks import personalised
from client_app.data import load_sites
from fedapp.config import RunConfig


def entry(validation: float, test: float, alone: float = 0.0) -> dict[str, Any]:
    scores = {"rouge_l": test, "exact_match": 0.0, "loss": -test}
    phase = {"mean": scores, "sites": {"A": scores}}
    return {
        "rounds": [{"loss": 9.0}, {"loss": validation, "gsnr": 0.1}],
        "local_only_validation": {"loss": alone},
        "test": {"personal": phase, "received": phase, "local-only": phase},
    }


def test_every_row_is_tried_at_as_many_points() -> None:
    for name, row in personalised.ROWS.items():
        points = dict(row.points("smollm2"))
        assert len(points) == personalised.GRID, name
        assert len({json.dumps(settings) for settings in points.values()}) == personalised.GRID


def test_the_lowest_validation_loss_is_chosen_whatever_the_test_says() -> None:
    points = [point for point, _ in personalised.ROWS["fedavg"].points("tiny")]
    runs = {
        personalised.key("tiny", "tasks", "fedavg", point, "tune"): entry(
            abs(n - 2), float(n), abs(n - 4)
        )
        for n, point in enumerate(points)
    }
    assert personalised.chosen(runs, "tiny", "tasks", "fedavg") == points[2]
    assert personalised.chosen(runs, "tiny", "tasks", personalised.LOCAL) == points[4]

    runs[personalised.key("tiny", "tasks", "fedavg", points[2], "seed0")] = entry(0.0, 0.3)
    runs[personalised.key("tiny", "tasks", "fedavg", points[2], "seed1")] = entry(0.0, 0.5)
    row = personalised.table(runs)["tiny"]["tasks"]["fedavg"]
    assert row["macro"]["rouge_l"] == {"mean": 0.4, "std": pytest.approx(0.1), "n": 2}
    assert row["clients"]["A"]["mean"] == 0.4
    assert row["over_rounds"] == {"gsnr": [pytest.approx(0.1)]}

    name = personalised.key("tiny", "tasks", "fedavg", points[2], "tune")
    diverged = {**runs, name: {"failed": "the loss became NaN"}}
    assert personalised.chosen(diverged, "tiny", "tasks", "fedavg") in (points[1], points[3])

    del runs[personalised.key("tiny", "tasks", "fedavg", points[5], "tune")]
    assert personalised.chosen(runs, "tiny", "tasks", "fedavg") is None


def test_the_clients_have_no_task_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(f"text {n}", n % 2, site) for site in ("Films", "Tweets") for n in range(30)]
    monkeypatch.setattr(clients, "sentiment", lambda: iter(_sentiment(texts)))
    monkeypatch.setattr(clients, "cache_folder", lambda: tmp_path)
    monkeypatch.chdir(clients.folder())
    medquad = tmp_path / "medquad.jsonl.gz"
    with gzip.open(medquad, "wt") as file:
        for n in range(60):
            row = {"site": ("GARD", "Other")[n % 2], "question": f"What is {n}?", "answer": f"{n}"}
            file.write(json.dumps(row) + "\n")

    source = clients.written("tasks", lambda: clients.tasks(medquad))
    config = RunConfig.from_flat({**personalised.COMMON, "data.source": source})
    sites = load_sites(config)

    assert set(sites) == {*clients.KINDS, "Films", "Tweets", "GARD"}
    for name, site in sites.items():
        asked = {
            record["messages"][0]["content"].split(". ")[-1]
            for part in site.splits.values()
            for record in part
        }
        assert len(asked) == 1 or name in ("Films", "Tweets", "GARD")
        assert sum(map(len, site.splits.values())) <= 120


def _sentiment(texts: list[tuple[str, int, str]]) -> list[dict[str, str]]:
    return [
        {"prompt": f"{text} {site}?", "response": ("bad", "good")[label], "site": site}
        for text, label, site in texts
    ]
