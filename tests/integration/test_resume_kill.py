"""SIGKILL of a whole run at named points; what is resumed equals what was never killed.

A run a method: it is killed at the first point in its second round, what resumes it is killed at
the next point a round later, and so on. After every kill each checkpoint must be, bit for bit, the
uninterrupted run's: the round that was struck last has been done again by then.

Prints a line a kill (`pytest -s`); `benchmarks/resume.py` makes the table of them.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from interface import ROOT
from kill_points import BEFORE_ITS_CHECKPOINT, BETWEEN_PEERS, IN_A_ROUND
from killer_app import KillerApp, adopting_orphans

from fedapp.results import RunFolder
from server_app.checkpoint import newest_checkpoint, read_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

# The six of the promise; `kill_points` has more points, and there are more methods, which the tests
# in one process go through.
SIX = (
    "before send",
    "while collecting",
    "after validation",
    "before checkpoint",
    "during checkpoint",
    "between rounds",
)
RESUMING = "while resuming"
FIRST = 2  # the round of the first kill; every other one is a round later
ROUNDS = FIRST + len(SIX)  # and one that nothing happens to
QUICK = (
    "model.source=embedded:tiny-encoder data.max-examples=40 train.local-epochs=1 train.device=cpu "
    f"federation.rounds={ROUNDS} federation.local-only=false "
    f"federation.keep-checkpoints={ROUNDS + 1}"
)
# Who takes part in a round is drawn, and sites remember the rounding error of earlier rounds.
DRAWN = "method=fedavg federation.fraction=0.75 federation.codec=int8"
# Sites have offsets and moments of their own, and are ahead of the coordinator at these points.
OFFSETS = "method=pflalign federation.fraction=0.75 train.learning-rate=0.3"
CASES = {
    "subspace-reg": ("method=subspace-reg", SIX),
    "fedavg, int8, three of four sites": (DRAWN, (*SIX[:4], RESUMING, *SIX[4:])),
    "pflalign, three of four sites": (OFFSETS, SIX[1:3]),
    # Every site has a model of its own, and the coordinator none.
    "lightyear": ("method=lightyear", ("before the exchange", "before mixing", SIX[3])),
}
PATIENCE = 600  # seconds for one command, which takes ten on a machine with nothing else to do


@dataclass
class Ward:
    """A desk with the product, and with the app that kills its own runs."""

    desk: Desk
    killer: KillerApp

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.desk.here / "runs" / name)

    def whole(self, name: str, *arguments: str) -> RunFolder:
        """An uninterrupted run."""
        done = self.desk.fedapp("run", ROOT, "--name", name, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return self.folder(name)

    def kill(self, point: str, round: int, *arguments: str | Path) -> str:
        """Begin or resume a run that kills itself, see that it did, and return what it printed."""
        self.killer.arm(point, round)
        with adopting_orphans():
            process = self.desk.start("run", self.killer.folder, *arguments)
            output, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == -signal.SIGKILL, output + errors
            victims = self.killer.victims()
        assert not any(victim.process.alive for victim in victims)
        ended = {name: v.signal for v in victims for name in PARTS if name in v.command}
        assert ended == dict.fromkeys(PARTS, signal.SIGKILL)
        assert sum("ClientAppActor" in victim.command for victim in victims) >= 1
        return output

    def resume(self, folder: RunFolder) -> str:
        """Resume with the product, see it through, and return what it printed."""
        done = self.desk.fedapp("run", ROOT, "--resume", folder.path)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout


# Of the processes that must have been ended by nothing but SIGKILL. (The command itself is the
# test's own child; Ray's processes also end when the one that started them does.)
PARTS = ("flower-superlink", "flower-superexec", "flwr-simulation", "bin/flwr run")


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    root = tmp_path_factory.mktemp("ward")
    made = Ward(Desk(root), KillerApp(root / "killing"))
    yield made
    made.desk.fedapp("stop", ROOT)
    made.desk.fedapp("stop", made.killer.folder)


@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_at_every_point_ends_with_the_same_bits(
    ward: Ward, record_property: Callable[[str, Any], None], case: str
) -> None:
    settings, points = CASES[case]
    name = settings.split()[0].removeprefix("method=")
    start = ("-c", f"{QUICK} {settings}")
    whole, folder = ward.whole(f"{name}-whole", *start), ward.folder(name)
    struck: dict[str, int] = {}  # the round that was cut short, by point
    next_round, done = FIRST, 0  # to strike; whose checkpoint is the newest
    for point in points:
        before = folder.metrics_size if struck else 0
        said = ward.kill(
            point, next_round, *(("--resume", folder.path) if struck else ("--name", name, *start))
        )
        assert ("The run was interrupted: its process has gone" in said) == bool(struck)
        if point == RESUMING:
            struck[point] = done + 1
            assert folder.metrics_size < before, "what the last kill had left is still there"
            _assert_the_report_tells(ward, folder)
        else:
            # The log comes by Flower's stream; the kill may be faster than its last lines.
            told = re.findall(rf"resumed after round (\d+) of {ROUNDS}", said)
            assert told in ([], [str(done)] if struck else [])
            struck[point] = next_round
            done = next_round - (point in {**BEFORE_ITS_CHECKPOINT, **BETWEEN_PEERS})
            next_round += 1
        _assert_whole_checkpoints(folder, whole, done)
        _assert_what_is_cut(folder, point, struck[point])
        assert folder.read_status()["state"] == "running"  # nobody could write another
        assert folder.state() == "interrupted"
        if "int8" in case and point == "after validation":  # and will do the round again
            assert [*folder.sites.glob(f"*/*/round-{next_round - 1:06d}.safetensors")]

    assert f"resumed after round {done} of {ROUNDS}" in ward.resume(folder)

    for point, round in struck.items():
        record_property("kill", json.dumps(_row(case, point, round, whole, folder)))
    _assert_same(whole, folder)
    if BETWEEN_PEERS.keys() & points:
        assert _models(folder) == _models(whole)
    if "fraction" in settings:
        _assert_not_always_the_same_sites(whole)


def test_the_points_are_those_that_there_are() -> None:
    assert set(SIX) <= set(IN_A_ROUND)


def _assert_the_report_tells(ward: Ward, folder: RunFolder) -> None:
    done = ward.desk.fedapp("report", ward.desk.here / "runs" / "latest")
    assert (done.returncode, done.stderr) == (0, "")
    assert "its process has gone, because it was killed" in folder.report_file.read_text()


def _digest(checkpoint: Path) -> str:
    return str(read_checkpoint(checkpoint).strategy["adapter"].digest())


def _row(case: str, point: str, round: int, whole: RunFolder, folder: RunFolder) -> dict[str, Any]:
    """The adapter after the round that was cut short, done again and never interrupted."""
    one, two = (_digest(run.checkpoint / f"round-{round:06d}") for run in (whole, folder))
    print(f"{case:34} {point:18} round {round} {two} {'same' if one == two else 'DIFFERENT'}")
    return {"case": case, "point": point, "round": round, "uninterrupted": one, "resumed": two}


def _models(folder: RunFolder) -> dict[str, bytes]:
    """What every site has in the end, without the header, which names the run."""
    found = {}
    for site in sorted(folder.sites.iterdir()):
        data = max(site.glob("*/round-*.safetensors")).read_bytes()
        found[site.name] = data[8 + int.from_bytes(data[:8], "little") :]
    assert len(set(found.values())) == len(found) > 1
    return found


def _assert_not_always_the_same_sites(whole: RunFolder) -> None:
    trained: dict[int, set[str]] = {}
    for row in whole.read_metrics():
        if row["site"] is not None and "train_loss" in row:
            trained.setdefault(row["round"], set()).add(row["site"])
    assert sorted(trained) == [*range(1, ROUNDS + 1)]
    assert len(set(map(frozenset, trained.values()))) > 1


def _summary(folder: RunFolder) -> dict[str, Any]:
    return dict(json.loads(folder.summary_file.read_text()))


def _assert_same(whole: RunFolder, resumed: RunFolder) -> None:
    """Everything but times and the name, and not by tolerance but by equality."""
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (whole.adapter / name).read_bytes() == (resumed.adapter / name).read_bytes()
    assert _timeless(whole.read_metrics()) == _timeless(resumed.read_metrics())
    summaries = [_timeless({**_summary(folder), "name": ""}) for folder in (whole, resumed)]
    assert summaries[0] == summaries[1]
    for path in sorted(whole.checkpoint.glob("round-*")):
        again = resumed.checkpoint / path.name / "state.safetensors"
        assert again.read_bytes() == (path / "state.safetensors").read_bytes(), path.name
    assert resumed.read_status()["state"] == "completed"
    assert _strays(resumed) == []


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not k.endswith("seconds")}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _assert_whole_checkpoints(folder: RunFolder, whole: RunFolder, newest: int) -> None:
    """What has a checkpoint's name is whole, and the uninterrupted run's after that round."""
    assert newest_checkpoint(folder.checkpoint).round == newest
    for path in folder.checkpoint.glob("round-*"):
        again = whole.checkpoint / path.name
        assert _digest(path) == _digest(again)
        data = [(place / "state.safetensors").read_bytes() for place in (path, again)]
        assert data[0] == data[1], path.name


def _assert_what_is_cut(folder: RunFolder, point: str, round: int) -> None:
    """The point was hit: the half-written file is there exactly where it should be."""
    cut = [p for p in _strays(folder) if f".round-{round:06d}." in p]
    assert bool(cut) == (point == "during checkpoint")
    if cut:
        files = {
            p.name: p.stat().st_size for p in (folder.checkpoint / Path(cut[0]).name).iterdir()
        }
        before = folder.checkpoint / f"round-{round - 1:06d}" / "state.safetensors"
        assert files == {"state.safetensors": before.stat().st_size // 2}


def _strays(folder: RunFolder) -> list[str]:
    """Hidden files and folders: what is written beside its destination until it is complete."""
    places = (folder.path, folder.checkpoint)
    return sorted(str(path) for place in places for path in place.glob(".*"))
