from __future__ import annotations

import json
from pathlib import Path

import pytest

from server_app import progress as module
from server_app.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module, "log", lines.append)
    return lines


def _event(path: Path, site: str, step: int, steps: int, loss: float = 0.434) -> None:
    event = {
        "site": site,
        "round": 2,
        "action": "train",
        "step": step,
        "steps": steps,
        "loss": loss,
        "time": 1.0,
    }
    with path.open("a") as stream:
        stream.write(json.dumps(event) + "\n")


def test_one_line_per_interval_with_the_time_left(
    tmp_path: Path, clock: Clock, said: list[str]
) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 5.0)
    progress.start(0.0)
    progress.phase("round 2/4", ["Cleveland", "Hungary"], 0.25, 0.5)
    _event(path, "Hungary", 12, 12)
    _event(path, "Cleveland", 8, 12)

    clock.now += 4.9
    progress.tick()
    assert said == []
    clock.now += 0.1
    progress.tick()
    # 5 s for 0.25 + 0.25 * (1 + 8/12) / 2 = 0.4583 of the run: 5.9 s for the rest.
    assert said == ["round 2/4 · Cleveland step 8/12 loss 0.43 · about 6 s left"]
    progress.tick()
    assert len(said) == 1


def test_after_a_resume_only_new_work_counts(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 5.0)
    progress.start(0.5)
    progress.phase("round 3/4", ["A"], 0.5, 0.75)
    assert progress.seconds_left() is None
    _event(path, "A", 1, 1)
    clock.now += 10.0
    progress.tick()

    assert progress.seconds_left() == pytest.approx(10.0)  # a quarter took 10 s, a quarter is left


def test_a_line_half_written_waits_for_its_end(
    tmp_path: Path, clock: Clock, said: list[str]
) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 1.0)
    progress.phase("round 1/1", ["A"], 0.0, 1.0)
    path.write_text('{"site": "A", "step": 3, "ste')
    clock.now += 1
    progress.tick()
    assert said[-1].startswith("round 1/1 · waiting for the sites since 1 s")
    with path.open("a") as stream:
        stream.write('ps": 9, "loss": 1.0}\n')
    clock.now += 1
    progress.tick()
    assert "A step 3/9 loss 1.00" in said[-1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "nonsense",
        '{"site": "A"}',
        '{"site": "A", "step": "x", "steps": 1}',
        '{"site": "A", "step": Infinity, "steps": 1, "loss": 1}',
        '{"site": "A", "step": 1, "steps": 1, "loss": 1%s}' % ("0" * 400),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("9" * 5000, id="thousands of digits"),
        "\xff",
    ],
)
def test_a_broken_line_is_passed_over(
    tmp_path: Path, clock: Clock, said: list[str], line: str
) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 1.0)
    progress.phase("round 1/1", ["A"], 0.0, 1.0)
    path.write_bytes(line.encode("latin-1") + b"\n")
    _event(path, "A", 1, 2)
    clock.now += 1
    progress.tick()

    assert "A step 1/2" in said[-1]


def test_events_of_an_earlier_phase_do_not_count(
    tmp_path: Path, clock: Clock, said: list[str]
) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 1.0)
    _event(path, "A", 9, 9)
    progress.phase("round 2/2", ["A"], 0.5, 1.0)
    clock.now += 1
    progress.tick()

    assert "step" not in said[-1]


def test_without_a_file_the_phase_is_told(clock: Clock, said: list[str]) -> None:
    progress = Progress(None, 1.0)
    progress.start(0.0)
    progress.phase("round 2/4", ["A"], 0.25, 0.5)
    clock.now += 10
    progress.tick()

    assert said == ["round 2/4 · waiting for the sites since 10 s · about 30 s left"]


def test_an_unreadable_file_costs_only_the_display(
    tmp_path: Path, clock: Clock, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, 1.0)  # a folder
    progress.phase("round 1/1", ["A"], 0.0, 1.0)
    clock.now += 1
    progress.tick()

    assert "no more progress" in capsys.readouterr().out
    assert len(said) == 1
