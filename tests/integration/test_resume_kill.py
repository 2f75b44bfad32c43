"""SIGKILL of a whole run at named points; what is resumed equals what was never killed.

Prints a line a case (`pytest -s`); `benchmarks/resume.py` makes the table of them.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from interface import ROOT
from kill_points import BEFORE_ITS_CHECKPOINT, IN_A_ROUND
from killer_app import KillerApp, Victim, adopting_orphans

from fedapp.results import RunFolder
from server_app.checkpoint import newest_checkpoint, read_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

QUICK = (
    "model.source=embedded:tiny-encoder data.max-examples=40 train.local-epochs=1 train.device=cpu "
    "federation.rounds=3 federation.local-only=false federation.keep-checkpoints=9"
)
CASES = {
    "subspace-reg": "method=subspace-reg",
    "fedavg": "method=fedavg",
    "fedsvd": "method=fedsvd",  # refuses an A that differs in one bit
    "fedavg, int8": "method=fedavg federation.codec=int8",  # sites remember the rounding error
    "fedavg, half of the sites a round": "method=fedavg federation.fraction=0.5",
}
# The six of the promise; `kill_points` has more, which the tests in one process go through.
SIX = (
    "before send",
    "while collecting",
    "after validation",
    "before checkpoint",
    "during checkpoint",
    "between rounds",
)
STRUCK = 2  # the round, of three
PATIENCE = 600  # seconds for one command, which takes ten on a machine with nothing else to do

Comparison = Callable[..., str]


@dataclass
class Ward:
    """A desk with the product, and with the app that kills its own runs."""

    desk: Desk
    killer: KillerApp
    wholes: dict[str, RunFolder] = field(default_factory=dict)

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.desk.here / "runs" / name)

    def whole(self, case: str) -> RunFolder:
        """An uninterrupted run, made once."""
        if case not in self.wholes:
            name = f"whole-{len(self.wholes)}"
            done = self.desk.fedapp("run", ROOT, "--name", name, "-c", f"{QUICK} {CASES[case]}")
            assert (done.returncode, done.stderr) == (0, "")
            self.wholes[case] = self.folder(name)
        return self.wholes[case]

    def kill(self, point: str, round: int, *arguments: str | Path) -> list[Victim]:
        """Begin or resume a run that kills itself, and see that it did."""
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
        return victims

    def resume(self, folder: RunFolder, after: int) -> None:
        """Resume with the product and see it through."""
        done = self.desk.fedapp("run", ROOT, "--resume", folder.path)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert "The run was interrupted: its process has gone" in done.stdout
        assert f"resumed after round {after} of 3" in done.stdout


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


@pytest.fixture
def same(ward: Ward, record_property: Callable[[str, Any], None]) -> Comparison:
    """Compares a resumed run with the uninterrupted one, and notes the digests."""

    def compare(case: str, folder: RunFolder, point: str) -> str:
        digests = [_summary(f)["adapter_digest"] for f in (ward.whole(case), folder)]
        for key, value in {"case": case, "point": point}.items():
            record_property(key, value)
        record_property("uninterrupted", digests[0])
        record_property("resumed", digests[1])
        print(f"\n{case:34} {point:42} {digests[1]} {'same' if len(set(digests)) == 1 else 'NOT'}")
        _assert_same(ward.whole(case), folder)
        return str(digests[1])

    return compare


@pytest.mark.parametrize("point", SIX)
@pytest.mark.parametrize("case", ["subspace-reg", "fedavg"])
def test_a_killed_run_resumes_to_the_same_bits(
    ward: Ward, same: Comparison, case: str, point: str
) -> None:
    whole, name = ward.whole(case), f"{case}-{point}".replace(" ", "-")
    ward.kill(point, STRUCK, "--name", name, "-c", f"{QUICK} {CASES[case]}")
    folder = ward.folder(name)
    done = STRUCK - 1 if point in BEFORE_ITS_CHECKPOINT else STRUCK
    _assert_whole_checkpoints(folder, whole, done)
    _assert_what_is_cut(folder, point)
    assert folder.read_status()["state"] == "running"  # nobody could write another
    assert folder.state() == "interrupted"

    ward.resume(folder, done)

    same(case, folder, point)


@pytest.mark.parametrize(
    ("case", "point"),
    [
        ("fedsvd", "during checkpoint"),
        # The sites have kept what they did not send in this round, and do the round again.
        ("fedavg, int8", "after validation"),
    ],
)
def test_other_methods_and_what_sites_remember(
    ward: Ward, same: Comparison, case: str, point: str
) -> None:
    name = case.replace(", ", "-")
    ward.kill(point, STRUCK, "--name", name, "-c", f"{QUICK} {CASES[case]}")
    folder = ward.folder(name)
    assert bool([*folder.sites.glob("*/*/round-000002.safetensors")]) == ("int8" in case)

    ward.resume(folder, STRUCK - 1)

    same(case, folder, point)


def test_who_is_drawn_does_not_change(ward: Ward, same: Comparison) -> None:
    case, point = "fedavg, half of the sites a round", "while collecting"
    ward.kill(point, STRUCK, "--name", "half", "-c", f"{QUICK} {CASES[case]}")

    ward.resume(ward.folder("half"), STRUCK - 1)

    same(case, ward.folder("half"), point)
    drawn = [
        {row["site"] for row in ward.folder("half").read_metrics() if row["round"] == round}
        for round in (1, 2)
    ]
    assert drawn[0] != drawn[1], "the same sites twice: the case shows nothing"


def test_killed_again_and_again_while_resuming_too(ward: Ward, same: Comparison) -> None:
    case, folder = "subspace-reg", ward.folder("again")
    ward.kill("before checkpoint", STRUCK, "--name", "again", "-c", f"{QUICK} {CASES[case]}")
    longest = folder.metrics_size
    ward.kill("while resuming", 0, "--resume", folder.path)
    assert folder.metrics_size < longest
    ward.kill("during checkpoint", STRUCK, "--resume", folder.path)
    _assert_whole_checkpoints(folder, ward.whole(case), STRUCK - 1)
    done = ward.desk.fedapp("report", ward.desk.here / "runs" / "latest")
    assert (done.returncode, done.stderr) == (0, "")
    assert "its process has gone, because it was killed" in folder.report_file.read_text()

    ward.resume(folder, STRUCK - 1)

    same(case, folder, "before checkpoint, while resuming, during checkpoint")


def test_the_table_names_points_that_there_are() -> None:
    assert set(SIX) <= set(IN_A_ROUND)


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
        saved = read_checkpoint(path).strategy["adapter"].digest()
        assert saved == read_checkpoint(whole.checkpoint / path.name).strategy["adapter"].digest()


def _assert_what_is_cut(folder: RunFolder, point: str) -> None:
    """The point was hit: the half-written file is there exactly where it should be."""
    cut = [p for p in _strays(folder) if f".round-{STRUCK:06d}." in p]
    assert bool(cut) == (point == "during checkpoint")
    if cut:
        files = {
            p.name: p.stat().st_size for p in (folder.checkpoint / Path(cut[0]).name).iterdir()
        }
        before = folder.checkpoint / f"round-{STRUCK - 1:06d}" / "state.safetensors"
        assert files == {"state.safetensors": before.stat().st_size // 2}


def _strays(folder: RunFolder) -> list[str]:
    """Hidden files and folders: what is written beside its destination until it is complete."""
    places = (folder.path, folder.checkpoint)
    return sorted(str(path) for place in places for path in place.glob(".*"))
