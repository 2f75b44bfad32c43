"""What a site keeps: found again bit for bit, or not at all, and by nobody else."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_federation import initial_adapter
from safetensors import safe_open
from safetensors.numpy import save

from client_app import state as module
from client_app.state import MOST_ROUNDS, MOST_RUNS, Kept, SiteStates, site_states
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, SiteStateError
from fedapp.exchange import Action, Instruction

RUN, OTHER_RUN = "0a" * 16, "0b" * 16
ADAPTER = initial_adapter(RunConfig())
LAYOUT = ADAPTER.layout_digest()


def states(folder: Path, site: str = "Évora / São João", run: str = RUN) -> SiteStates:
    return SiteStates(folder, site, run, LAYOUT)


def numbered(value: float) -> dict[str, object]:
    return {
        "residual": ADAPTER.map(lambda _, x: x + np.float32(value)),
        "moments": np.arange(4, dtype=np.float64) * value,
        "steps": {"count": int(value), "beta": 0.1 + 0.2},
    }


def value_of(kept: Kept) -> int:
    count = kept.state["steps"]["count"]
    assert kept.state["residual"].digest() == numbered(count)["residual"].digest()  # type: ignore[attr-defined]
    return int(count)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    states(tmp_path).save(3, numbered(7), keep=2)

    kept = states(tmp_path).load(4)

    assert kept.round == 3
    assert value_of(kept) == 7
    assert kept.state["residual"].layout() == ADAPTER.layout()
    np.testing.assert_array_equal(kept.state["moments"], np.arange(4) * 7.0)
    assert kept.state["steps"] == {"count": 7, "beta": 0.1 + 0.2}


def test_a_round_continues_from_the_newest_before_it(tmp_path: Path) -> None:
    site = states(tmp_path)
    assert site.load(1) == Kept()
    for number in (1, 2, 5):
        site.save(number, numbered(number), keep=10)

    found = {round: site.load(round).round for round in range(1, 8)}

    assert found == {1: 0, 2: 1, 3: 2, 4: 2, 5: 2, 6: 5, 7: 5}
    assert value_of(site.load(6)) == 5


def test_a_repeat_replaces_its_own_state_alone(tmp_path: Path) -> None:
    site = states(tmp_path)
    site.save(1, numbered(1), keep=2)
    site.save(2, numbered(2), keep=2)
    site.save(2, numbered(22), keep=2)

    assert value_of(site.load(3)) == 22
    assert value_of(site.load(2)) == 1


@pytest.mark.parametrize("keep", [1, 2, 5])
@pytest.mark.parametrize("step", [1, 3])
def test_whatever_checkpoint_is_resumed_its_state_is_there(
    tmp_path: Path, keep: int, step: int
) -> None:
    """While round t runs the coordinator has the checkpoints t - keep to t - 1."""
    site, trained = states(tmp_path), list(range(1, 31, step))
    for number in trained:
        site.save(number, numbered(number), keep)
        for checkpoint in range(max(0, number - keep), number + 1):
            expected = max((r for r in trained if r <= min(checkpoint, number)), default=0)
            assert site.load(checkpoint + 1).round == expected
        assert len(files(tmp_path)) <= keep + 1


def test_size_is_bounded_whatever_the_coordinator_keeps(tmp_path: Path) -> None:
    site = states(tmp_path)
    for number in range(1, 40):
        site.save(number, {"x": np.zeros(1)}, keep=1000)

    assert len(files(tmp_path)) == MOST_ROUNDS + 1


def test_a_resume_drops_the_states_of_rounds_that_are_computed_again(tmp_path: Path) -> None:
    site = states(tmp_path)
    for number in (1, 2, 3, 4):
        site.save(number, numbered(number), keep=5)

    states(tmp_path).save(2, numbered(22), keep=5)

    assert value_of(states(tmp_path).load(5)) == 22


def test_work_that_comes_late_costs_no_newer_state(tmp_path: Path) -> None:
    states(tmp_path).save(1, numbered(1), keep=5)
    late = states(tmp_path)  # round 2 hangs; the coordinator goes on, another worker does round 3
    assert value_of(late.load(2)) == 1
    states(tmp_path).save(3, numbered(3), keep=5)

    late.save(2, numbered(2), keep=5)

    assert value_of(states(tmp_path).load(4)) == 3


def test_the_runs_not_used_for_longest_go(tmp_path: Path) -> None:
    runs = [f"{number:032x}" for number in range(MOST_RUNS + 3)]
    for age, run in enumerate(runs):
        site = states(tmp_path, run=run)
        site.save(1, numbered(1), keep=2)
        os.utime(site.folder, (1000 + age, 1000 + age))
    states(tmp_path, run=runs[-1]).save(2, numbered(2), keep=2)

    left = [run for run in runs if states(tmp_path, run=run).load(9).round]
    assert left == runs[-MOST_RUNS:]


def test_sites_and_runs_share_nothing(tmp_path: Path) -> None:
    names = ["Ulm", "ulm", "Ulm ", "../Ulm", "Ü", "/", "..", "é" * 100, "A/B", "A-B"]
    for number, name in enumerate(names):
        states(tmp_path / "s", name).save(1, numbered(number), keep=2)

    assert [value_of(states(tmp_path / "s", name).load(2)) for name in names] == [*range(10)]
    assert states(tmp_path / "s", "Ulm", OTHER_RUN).load(2) == Kept()
    assert [path.name for path in tmp_path.iterdir()] == ["s"], "nothing is written elsewhere"
    folders = {path.name.lower() for path in (tmp_path / "s").iterdir()}
    assert len(folders) == len(names), "on a disk that does not tell capitals either"


@pytest.mark.parametrize("run", ["", "..", "../x", "0A" * 16, "0a" * 15, "0a" * 16 + "\n"])
def test_a_run_that_is_none_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(ConfigError, match="the run has no identity"):
        states(tmp_path, run=run)


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        site = states(tmp_path / "sites")
        site.save(1, numbered(1), keep=2)
    finally:
        os.umask(old)

    (path,) = site.folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert site.folder.stat().st_mode & 0o777 == 0o700
    assert site.folder.parent.stat().st_mode & 0o777 == 0o700


def test_the_file_is_numbers_and_json(tmp_path: Path) -> None:
    site = states(tmp_path)
    site.save(1, numbered(1), keep=2)

    (path,) = site.folder.iterdir()
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["fedapp"])
        assert "residual/classifier.weight" in file.keys()  # noqa: SIM118
    assert (header["format"], header["run"], header["round"]) == (2, RUN, 1)
    assert b"pickle" not in path.read_bytes()


def _rewrite(path: Path, **changes: object) -> None:
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["fedapp"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path.write_bytes(save(tensors, metadata={"fedapp": json.dumps({**header, **changes})}))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "cut": (_cut, r"cannot be read \(SafetensorError\)"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "text": (lambda path: path.write_text("no tensors at all"), "cannot be read"),
    "other tensors": (lambda path: path.write_bytes(save({"x": np.zeros(2)})), "cannot be read"),
    "flipped bit": (_flip, "is damaged"),
    "future format": (lambda path: _rewrite(path, format=3), "is of another format"),
    "changed setting": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"count\\": 2', b'"count\\": 9')),
        "is damaged",
    ),
    "other site": (lambda path: _rewrite(path, site="Ulm"), "is of another site"),
    "other run": (lambda path: _rewrite(path, run=OTHER_RUN), "is of another run"),
    "other round": (lambda path: _rewrite(path, round=1), "is of another round"),
    "other layout": (lambda path: _rewrite(path, layout="f" * 64), "is of another layout"),
    "other shapes": (
        lambda path: _rewrite(path, state={"moments": {"kind": "adapter", "layout": {}}}),
        "is damaged",
    ),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_trusted_is_not_used_and_named(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = states(tmp_path)
    site.save(1, numbered(1), keep=5)
    site.save(2, numbered(2), keep=5)
    change, sentence = DAMAGES[damage]
    change(site.folder / "round-000002.safetensors")

    with caplog.at_level(logging.WARNING):
        kept = site.load(3)

    assert kept == Kept(), "not the one before: it would bring back what was sent since"
    (record,) = caplog.records
    assert record.getMessage().startswith("site Évora / São João, round 3: round-000002")
    assert record.getMessage().endswith("; the site starts from zero")
    assert caplog.text.count(sentence.replace("\\", "")) == 1
    assert value_of(site.load(2)) == 1, "round 2 continues from round 1 as ever"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_nothing_is_one_sentence_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    site = states(tmp_path)
    site.save(1, numbered(1), keep=2)

    def full(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_bytes", full)
        with pytest.raises(SiteStateError) as caught:
            site.save(2, numbered(2), keep=2)

    assert f"cannot be written ({os.strerror(code)})" in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert site.load(3).round == 1


def test_a_folder_that_may_not_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    site = states(tmp_path)
    site.save(1, numbered(1), keep=2)
    monkeypatch.setattr(Path, "iterdir", denied)

    with pytest.raises(SiteStateError, match=r"cannot be read \(Permission denied\)"):
        site.load(2)


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_state import numbered, states
site = states(Path({folder!r}))
site.save(1, numbered(1), keep=2)
print("ready", flush=True)
while True:
    site.save(2, numbered(2), keep=2)
"""


@pytest.mark.chaos
def test_a_kill_leaves_a_whole_state(tmp_path: Path) -> None:
    path = [str(Path(__file__).parent), *sys.path]
    code = KILLED.format(path=path, folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()

    site = states(tmp_path)
    assert value_of(site.load(2)) == 1
    kept = site.load(3)
    assert value_of(kept) == kept.round
    for leftover in site.folder.glob(".round-*"):
        os.utime(leftover, (1000, 1000))
    site.save(3, numbered(3), keep=2)
    assert all(name.startswith("round-") for name in files(tmp_path))


def instruction(**changes: str) -> Instruction:
    return Instruction(Action.TRAIN, "Ulm", RunConfig(), 1, **changes)  # type: ignore[arg-type]


def test_where_a_site_keeps_its_states(tmp_path: Path) -> None:
    place = site_states(
        instruction(run=RUN, state_folder=str(tmp_path)), LAYOUT, "federation.error-feedback"
    )
    assert place is not None
    assert place.folder.is_relative_to(tmp_path)

    assert site_states(instruction(), LAYOUT, "scaffold") is None, "Flower's own loop"
    assert site_states(instruction(run=RUN), LAYOUT) is None
    with pytest.raises(ConfigError, match=r"state-folder=.*error-feedback = false"):
        site_states(instruction(run=RUN), LAYOUT, "federation.error-feedback")
