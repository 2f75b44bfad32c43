"""The benchmark of personalised methods: grids of one size, choices by validation, its clients."""

from __future__ import annotations

import gzip
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import instruction_clients as clients
from benchmarks import personalised
from benchmarks.personalised_rows import GRID
from benchmarks.shared_work import work
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
    for name, row in personalised.ALL_ROWS.items():
        points = dict(row.points())
        assert len(points) == GRID, name
        assert len({json.dumps(settings) for settings in points.values()}) == GRID
        for settings in points.values():
            RunConfig.from_flat({**personalised.MODELS["tiny"], **settings})


def tuned(model: str, setting: str, row: str, best: int, **runs: Any) -> dict[str, Any]:
    points = list(personalised.grid(runs, model, setting, row) or ())
    return runs | {
        personalised.key(model, setting, row, point, "tune"): entry(abs(n - best), 0.0)
        for n, point in enumerate(points)
    }


def test_a_dear_model_takes_over_rate_and_knob() -> None:
    def points(runs: dict[str, Any], row: str) -> list[dict[str, Any]]:
        return list((personalised.grid(runs, "smollm2", "four", row) or {}).values())

    assert [p["train.learning-rate"] for p in points({}, "pflalign")] == [0.25, 1.0, 4.0]
    assert not points({}, "ditto")
    runs = tuned("smollm2", "four", "fedavg", best=2)
    assert [p["train.learning-rate"] for p in points(runs, "fedsa-lora")] == [8e-3]
    assert not points(runs, "ditto"), "its knob is not known yet"
    runs = tuned("tiny", "tasks", "ditto", best=0, **runs)
    knob = next(personalised.ALL_ROWS["ditto"].points())[1]["ditto.lambda"]

    (found,) = points(runs, "ditto")

    assert (found["train.learning-rate"], found["ditto.lambda"]) == (8e-3, knob)
    assert len(personalised.tried(runs)["smollm2/four"]["ditto"]) == 1
    (name,) = personalised.grid(runs, "smollm2", "four", "ditto") or ()
    assert personalised.chosen(runs, "smollm2", "four", "ditto") == name
    assert personalised.chosen(runs, "smollm2", "four", "pflalign-adamw") == "lr 0.008"


def test_what_is_left_is_named_before_and_after_the_choice() -> None:
    def left(runs: dict[str, Any], row: str) -> list[tuple[str, personalised.Job]]:
        return list(personalised.jobs(runs, "tiny", "tasks", "x.jsonl", [row], [0, 1, 2]))

    runs: dict[str, Any] = {}
    assert [job.seed for _, job in left(runs, "ditto")] == [None] * 6 + [0, 1, 2]
    assert len(left(runs, "fedavg")) == 6 + 2 * 3, "local-only has a point of its own"
    assert not any(job.settings for _, job in left(runs, "ditto") if job.seed is not None)
    for n, (name, _) in enumerate(left(runs, "ditto")[:6]):
        runs[name] = entry(abs(n - 3), 0.0) | {"cpu_seconds": 4.0}

    finals = left(runs, "ditto")

    assert [job.seed for _, job in finals] == [0, 1, 2]
    for name, job in finals:
        assert job.settings is not None
        assert job.settings["federation.gsnr"] == 64
        assert job.settings["train.generate-tokens"] == 24
        runs[name] = entry(0.0, 0.4) | {"cpu_seconds": 8.0}
    assert not left(runs, "ditto")
    ((_, again),) = left({k: v for k, v in runs.items() if k != finals[1][0]}, "ditto")
    assert again.seconds(runs) == pytest.approx(8.0)
    runs[finals[1][0]] = {"failed": "the loss became NaN"}
    row = personalised.table(runs)["tiny"]["tasks"]["ditto"]
    assert (row["macro"]["rouge_l"]["n"], row["failed_seeds"]) == (2, 1)


def test_processes_share_the_work_and_do_nothing_twice(tmp_path: Path) -> None:
    names = [f"run {n}" for n in range(12)]
    done: list[str] = []

    def do(name: str) -> None:
        time.sleep(0.01)
        done.append(name)

    def one() -> None:
        work(tmp_path, lambda: [name for name in names if name not in done], do)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.shared_work.POLL_SECONDS", 0.01)
        threads = [threading.Thread(target=one) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

    assert sorted(done) == sorted(names)


def test_the_lowest_validation_loss_is_chosen_whatever_the_test_says() -> None:
    points = [point for point, _ in personalised.ROWS["fedavg"].points()]
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
    config = RunConfig.from_flat({**personalised.MODELS["tiny"], "data.source": source})
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
