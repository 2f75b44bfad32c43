from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest

from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.results import RunFolder, State, finite, is_free, versions
from fedapp.run_lock import RunLock


def _config(root: Path, **changes: object) -> RunConfig:
    flat = {"output-dir": str(root), "method": "fedavg"}
    return RunConfig.from_flat({**flat, **changes})  # type: ignore[dict-item]


def test_a_named_folder_and_the_link_to_the_newest(tmp_path: Path) -> None:
    first = RunFolder.create(_config(tmp_path, name="one"))
    second = RunFolder.create(_config(tmp_path, name="two"))

    assert first.path == tmp_path / "one"
    assert (tmp_path / "latest").resolve() == second.path
    first.point_latest()
    assert (tmp_path / "latest").resolve() == first.path


def test_without_a_name_two_runs_in_one_second_differ(tmp_path: Path) -> None:
    folders = {RunFolder.create(_config(tmp_path)).path for _ in range(3)}

    assert len(folders) == 3
    assert all(path.name.startswith("fedavg-") for path in folders)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder.create(_config(tmp_path, name="one")).write_status("completed")

    with pytest.raises(ConfigError, match="choose another name, or set resume"):
        RunFolder.create(_config(tmp_path, name="one"))


def test_the_settings_are_there_from_the_start(tmp_path: Path) -> None:
    config = _config(tmp_path, name="one", seed=7)
    folder = RunFolder.create(config)

    written = json.loads(folder.config_file.read_text())
    assert RunConfig.from_flat(written["settings"]) == config
    assert RunFolder.open(folder.path).path == folder.path


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_run_that_never_began_gives_its_name_back(tmp_path: Path, state: State) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    folder.write_status(state, "the handshake failed", 4, run_id=3)
    folder.progress_file.write_text("")

    again = RunFolder.create(_config(tmp_path, name="one", seed=8))

    assert again.path == folder.path
    assert json.loads(again.config_file.read_text())["seed"] == 8


def _checkpointed(folder: RunFolder) -> None:
    (folder.checkpoint / "round-000000").mkdir(parents=True)
    folder.write_status("failed")


TAKEN = {
    "completed": lambda folder: folder.write_status("completed"),
    "with a checkpoint": _checkpointed,
    "with metrics": lambda folder: (folder.append_metrics([{}]), folder.write_status("failed")),
    "no status": lambda folder: None,
    "broken status": lambda folder: folder.status_file.write_text("{"),
}


@pytest.mark.parametrize("what", TAKEN)
def test_any_other_folder_is_taken(tmp_path: Path, what: str) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    TAKEN[what](folder)

    assert not is_free(folder.path)
    with pytest.raises(ConfigError, match="choose another name, or set resume"):
        RunFolder.create(_config(tmp_path, name="one"))


def test_a_run_in_progress_takes_its_folder_and_one_that_was_killed_does_not(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    lock = RunLock(folder.path)
    folder.write_status("running")
    assert folder.state() == "running"
    assert not is_free(folder.path)

    lock.release()

    assert folder.state() == "interrupted"
    assert is_free(folder.path)


def test_a_run_that_ends_while_one_looks_is_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    folder.write_status("running")

    def ends(path: Path) -> bool:
        folder.write_status("completed")
        return False

    monkeypatch.setattr("fedapp.results.is_held", ends)

    assert folder.state() == "completed"


@pytest.mark.parametrize("state", ["completed", "failed", "stopped"])
def test_a_state_that_was_written_last_stays(tmp_path: Path, state: State) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    assert folder.state() == ""
    folder.write_status(state)

    assert folder.state() == state


def test_a_completed_run_killed_before_its_resumption_began_is_completed(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    folder.write_status("completed", run_id=1)
    folder.begin_status(2)

    assert folder.state() == "completed"


def test_where_there_are_no_locks_running_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    folder.write_status("running")
    monkeypatch.setattr("fedapp.results.is_held", lambda path: None)

    assert folder.state() == "running"


def test_what_a_killed_process_had_not_finished_is_removed_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    for name in (".status.json.k3_x9a0b", ".metrics.jsonl.abcdefgh", ".report.html.12345678"):
        (folder.path / name).write_text("half")
    for name in (".adapter.abcdefgh", ".adapter.old-abcdefgh", "adapter"):
        (folder.path / name).mkdir()
    for name in (".notes", ".status.json.backup-of-mine", "metrics.jsonl", ".env.abcdefgh"):
        (folder.path / name).write_text("mine")

    folder.remove_leftovers()

    left = {path.name for path in folder.path.iterdir()}
    assert left == {
        *(".notes", ".status.json.backup-of-mine", "metrics.jsonl", ".env.abcdefgh"),
        *("adapter", "config.json"),
    }


def test_an_adapter_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    old = folder.path / ".adapter.old-abcdefgh"
    old.mkdir()
    (old / "adapter_config.json").write_text("{}")
    (folder.path / ".adapter.abcdefgh").mkdir()

    folder.remove_leftovers()

    assert [path.name for path in folder.adapter.iterdir()] == ["adapter_config.json"]
    assert not list(folder.path.glob(".adapter*"))


def test_a_file_is_no_free_folder(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("")

    assert not is_free(tmp_path / "one")
    assert is_free(tmp_path / "two")


def test_a_folder_of_the_name_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    RunFolder.create(_config(tmp_path, name="one"))

    assert not (tmp_path / "latest").is_symlink()


def test_a_root_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="set output-dir to a folder you may write to"):
        RunFolder.create(_config(tmp_path / "file"))


def test_the_default_root_is_runs_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(RunConfig.from_flat({"name": "one"}))

    assert folder.path == tmp_path / "runs" / "one"


def test_opening_follows_latest_and_refuses_other_folders(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path, name="one"))
    folder.write_config(_config(tmp_path), versions())

    assert RunFolder.open(tmp_path / "latest").path == folder.path
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        RunFolder.open(tmp_path)


def test_config_holds_settings_versions_and_seed(tmp_path: Path) -> None:
    config = _config(tmp_path, seed=5, name="one")
    folder = RunFolder.create(config)
    folder.write_config(config, versions(), sites={"A": {}})

    written = json.loads(folder.config_file.read_text())
    assert RunConfig.from_flat(written["settings"]) == config
    assert written["seed"] == 5
    assert written["digest"] == config.digest()
    assert {"fedapp", "python", "numpy", "flwr"} <= set(written["versions"])
    assert written["sites"] == {"A": {}}


def test_metrics_grow_and_are_cut_back(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path))
    folder.append_metrics([{"round": 1}, {"round": 1, "site": None}])
    size = folder.metrics_size
    folder.append_metrics([{"round": 2, "loss": math.inf, "name": "é"}])

    assert folder.read_metrics()[2] == {"round": 2, "name": "é"}
    folder.truncate_metrics(size)
    assert folder.read_metrics() == [{"round": 1}, {"round": 1, "site": None}]
    assert folder.metrics_size == size
    with pytest.raises(CheckpointError, match="restore the file"):
        folder.truncate_metrics(size + 1)


def test_half_a_line_of_a_killed_run_is_cut_off(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path))
    folder.append_metrics([{"round": 1}])
    size = folder.metrics_size
    with folder.metrics_file.open("a") as stream:
        stream.write('{"round": 2, "si')

    folder.truncate_metrics(size)

    assert folder.read_metrics() == [{"round": 1}]


def test_the_status_keeps_its_run_id(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path))
    folder.write_status("running", run_id=2**63 + 5)
    folder.write_status("stopped", "Ctrl-C", 130)

    assert folder.read_status() == {
        "state": "stopped",
        "error": "Ctrl-C",
        "exit_code": 130,
        "run_id": 2**63 + 5,
    }


def test_a_failing_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(_config(tmp_path))
    folder.write_summary({"rounds": 1})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            folder.write_summary({"rounds": 2})
    assert json.loads(folder.summary_file.read_text()) == {"rounds": 1}
    assert sorted(p.name for p in folder.path.iterdir()) == ["config.json", "summary.json"]


def test_finite_drops_what_json_cannot_say() -> None:
    assert finite({"a": math.nan, "b": [1.0, math.inf], "c": {"d": -math.inf, "e": 0}}) == {
        "b": [1.0, None],
        "c": {"e": 0},
    }


@pytest.mark.parametrize("rubbish", [b"no json\n", b"\xff\xfe\n", b"[1]\n", b"[" * 50_000])
def test_damaged_metrics_are_named(tmp_path: Path, rubbish: bytes) -> None:
    folder = RunFolder.create(RunConfig(name="a", output_dir=str(tmp_path)))
    folder.metrics_file.write_bytes(rubbish)

    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        folder.read_metrics()


def _completed(root: Path) -> RunFolder:
    folder = RunFolder.create(_config(root, name="one"))
    folder.begin_status(7)
    folder.write_status("completed", run_id=7)
    return folder


def test_a_refused_resumption_leaves_a_completed_run_completed(tmp_path: Path) -> None:
    folder = _completed(tmp_path)
    for run_id in (8, 9):
        folder.begin_status(run_id)
        assert folder.read_status()["state"] == "running"
        folder.end_status("failed", f"no {run_id}", 6, run_id)

    status = folder.read_status()
    assert status.pop("refused") == {"error": "no 9", "exit_code": 6, "run_id": 9}
    assert status == {"state": "completed", "error": None, "exit_code": 0, "run_id": 7}


def test_a_resumption_that_began_and_failed_is_a_failure(tmp_path: Path) -> None:
    folder = _completed(tmp_path)
    folder.begin_status(8)
    folder.write_status("running")
    folder.end_status("failed", "the disk is full", 6, 8)
    failed = {"state": "failed", "error": "the disk is full", "exit_code": 6, "run_id": 8}
    assert folder.read_status() == failed

    folder.begin_status(9)  # a failed run that fails again, though nothing was changed
    folder.end_status("failed", "no", 6, 9)
    assert folder.read_status() == {**failed, "error": "no", "run_id": 9}


def test_a_status_that_was_cut_short_is_written_anew(tmp_path: Path) -> None:
    folder = _completed(tmp_path)
    folder.status_file.write_text('{"state": "comp')
    folder.begin_status(8)
    running = {"state": "running", "error": None, "exit_code": 0, "run_id": 8}
    assert folder.read_status() == running


ODD = ["", "[" * 100_000, "[]", "null", "\ud800", '{"earlier": "completed"}'] + [
    f'{{"state": "completed", "run_id": 7, "{key}": {value}}}'
    for key in ("earlier", "state", "run_id", "exit_code", "error")
    for value in ("[1]", "1.5", "true", '"x"', "[" * 900 + "]" * 900, '{"state": {"a": 1}}')
]


@pytest.mark.parametrize("text", ODD)
def test_a_status_of_odd_content_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    folder = _completed(tmp_path)
    folder.status_file.write_bytes(text.encode("utf-8", "surrogatepass"))

    assert isinstance(folder.state(), str)
    for end in (folder.end_status, folder.write_status):
        folder.begin_status(8)
        began = json.loads(folder.status_file.read_text())
        assert (began["state"], began["run_id"]) == ("running", 8)
        end("failed", "no", 6, 8)
        assert folder.state() in ("completed", "failed")
        folder.status_file.write_bytes(text.encode("utf-8", "surrogatepass"))
    folder.write_status("stopped", "Ctrl-C", 130)
    assert folder.state() == "stopped"


def test_the_status_is_true_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no new file has room, the old one is written over."""
    folder = _completed(tmp_path)

    def full(path: Path, data: bytes, *more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("fedapp.results.write_bytes", full)
    folder.write_status("failed", "no room", 6, 8)
    assert folder.read_status()["error"] == "no room"
    folder.write_status("failed", "", 6, 8)
    assert folder.read_status()["error"] == ""
    folder.status_file.unlink()
    with pytest.raises(OSError, match="No space left"):
        folder.write_status("failed", "no room", 6, 8)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_for_the_adapter_is_found_early(tmp_path: Path, kind: str) -> None:
    folder = _completed(tmp_path)
    folder.check_adapter()
    if kind == "link":
        folder.adapter.symlink_to(tmp_path)
    else:
        folder.adapter.write_text("mine")
    with pytest.raises(CheckpointError, match=rf"adapter is a {kind}, expected a folder"):
        folder.check_adapter()


@pytest.mark.parametrize("content", ["", "[" * 100_000, "[]", "{}", '{"settings": 3}', "\udcff"])
def test_a_damaged_record_of_the_settings_is_one_sentence(tmp_path: Path, content: str) -> None:
    folder = _completed(tmp_path)
    folder.config_file.write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(
        CheckpointError, match=r"config\.json cannot be read: .*; restore it"
    ) as caught:
        folder.read_config()
    assert str(caught.value).isprintable()


def test_of_the_record_only_what_can_be_used_is_read(tmp_path: Path) -> None:
    folder = _completed(tmp_path)
    for sites in (None, [], {"A": {"label_map": ["x"]}, "B": 3}):
        folder.config_file.write_text(json.dumps({"settings": {"seed": 3}, "sites": sites}))
        read = folder.read_config()
        assert read["settings"] == {"seed": 3}
        assert read["sites"] == ({"A": {"label_map": ["x"]}} if isinstance(sites, dict) else {})
