"""An interrupted run that is resumed equals one that was never interrupted, bit for bit."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_federation import HOSPITALS, FakeGrid, FakeSite, initial_adapter, silent
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from kill_points import BEFORE_ITS_CHECKPOINT, IN_A_ROUND, POINTS, Arming

from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, MissingReplies
from fedapp.results import RunFolder
from fedapp.run_lock import RunLock
from server_app import checkpoint as checkpoint_module
from server_app.app import build_strategy, run
from server_app.checkpoint import newest_checkpoint

Settings = Callable[..., RunConfig]
Whole = Callable[[RunConfig], RunFolder]
METHODS = ("fedavg", "svd", "fedsvd", "subspace-reg", "dysco", "random-boost", "flora")


class Interrupted(BaseException):
    """Stands for a kill: nothing in the product catches it by name."""


def _interrupt(
    config: RunConfig, point: str, round: int = 2, grid: FakeGrid | None = None
) -> RunFolder:
    """Begin a run, or resume one, that is struck; nothing is tidied up or told from then on."""
    again = bool(config.resume)
    folder = RunFolder.open(Path(config.resume)) if again else RunFolder.create(config)
    with pytest.MonkeyPatch.context() as patch:

        def strike() -> None:
            patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
            patch.setattr(RunFolder, "end_status", lambda *args: None)
            raise Interrupted

        POINTS[point](Arming(round, strike, patch.setattr))
        with pytest.raises(Interrupted):
            run(grid or FakeGrid(), config, folder, 1)
    assert folder.state() == "interrupted"
    return folder


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run with the same settings that nothing interrupts, made once."""
    root, known = tmp_path_factory.mktemp("whole"), dict[str, RunFolder]()

    def whole(config: RunConfig) -> RunFolder:
        key = f"{config.digest()} {config.federation.local_only}"
        if key not in known:
            config = config.with_changes({"output-dir": str(root), "name": f"{len(known)}"})
            folder = RunFolder.create(config)
            run(FakeGrid(), config, folder, 1)
            known[key] = folder
        return known[key]

    return whole


def _resume(folder: RunFolder, config: RunConfig, grid: FakeGrid | None = None) -> RunFolder:
    again = config.with_changes({"resume": str(folder.path)})
    reopened = RunFolder.open(folder.path)
    run(grid or FakeGrid(), again, reopened, 2)
    return reopened


def _summary(folder: RunFolder) -> dict[str, Any]:
    summary = json.loads(folder.summary_file.read_text())
    return {key: value for key, value in summary.items() if key not in ("name", "wall_seconds")}


def _comparable(folder: RunFolder) -> list[dict[str, Any]]:
    """Rows without times, which no two runs share."""
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in folder.read_metrics()
    ]


@pytest.mark.parametrize("point", [point for point in POINTS if point != "while resuming"])
@pytest.mark.parametrize("method", METHODS)
def test_resume_is_bit_identical(
    settings: Settings, uninterrupted: Whole, method: str, point: str
) -> None:
    config = settings(method=method, federation__fraction=0.75)
    whole = uninterrupted(config)

    parts = _resume(_interrupt(config, point), config)

    summaries = [json.loads(f.summary_file.read_text()) for f in (whole, parts)]
    assert summaries[0]["adapter_digest"] == summaries[1]["adapter_digest"]
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (whole.adapter / name).read_bytes() == (parts.adapter / name).read_bytes()
    assert _comparable(whole) == _comparable(parts)
    assert not [*parts.path.glob(".*"), *parts.checkpoint.glob(".*")]
    for key in ("sites", "mean", "worst", "training_seconds", "bytes_down"):
        assert summaries[0][key] == summaries[1][key]
    # The second process fetched the initial adapter once more, for the local-only baseline.
    again = pack(initial_adapter(config)).nbytes
    assert summaries[1]["bytes_up"] == summaries[0]["bytes_up"] + again
    assert parts.read_status() == {
        "state": "completed",
        "error": None,
        "exit_code": 0,
        "run_id": 2,
    }


@examples(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    method=st.sampled_from(METHODS),
    fraction=st.sampled_from([1.0, 0.75, 0.5]),
    strikes=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(list(IN_A_ROUND))), min_size=1, max_size=3
    ),
)
def test_however_often_and_wherever_a_run_is_killed(
    settings: Settings,
    uninterrupted: Whole,
    method: str,
    fraction: float,
    strikes: list[tuple[int, str]],
) -> None:
    common = {"method": method, "federation__fraction": fraction, "federation__local_only": False}
    config = settings(name=f"run-{secrets.token_hex(4)}", **common)
    folder: RunFolder | None = None
    done = 0
    for round, point in sorted(strikes, key=lambda strike: strike[0]):
        if round > done:  # else the run is beyond it
            resume = {"resume": str(folder.path)} if folder else {}
            folder = _interrupt(config.with_changes(resume), point, round)
            done = newest_checkpoint(folder.checkpoint).round
            assert done == (round - 1 if point in BEFORE_ITS_CHECKPOINT else round)
    assert folder is not None

    _resume(folder, config)

    whole = uninterrupted(config)
    assert _comparable(whole) == _comparable(folder)
    assert _summary(whole) == _summary(folder)


def test_a_run_killed_while_it_resumes_still_ends_the_same(
    settings: Settings, uninterrupted: Whole
) -> None:
    config = settings()
    folder = _interrupt(config, "before checkpoint")
    _interrupt(config.with_changes({"resume": str(folder.path)}), "while resuming")

    _resume(folder, config)

    assert _comparable(uninterrupted(config)) == _comparable(folder)


def test_what_a_kill_left_half_written_is_removed_at_resume(settings: Settings) -> None:
    folder = _interrupt(settings(), "during checkpoint")
    (left,) = folder.checkpoint.glob(".round-000002.*")
    assert [path.name for path in left.iterdir()] == ["state.safetensors"]
    (folder.path / ".status.json.abcdefgh").write_text("{")
    foreign = folder.checkpoint / ".round-notes"
    foreign.write_text("mine")

    # Before anything else: this resumption is refused and still tidies up.
    with pytest.raises(CheckpointError, match=r"train\.learning-rate"):
        _resume(folder, settings(train__learning_rate=0.5))

    assert not left.exists()
    assert not list(folder.path.glob(".status*"))
    assert foreign.exists()


def test_two_processes_do_not_work_in_one_folder(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedapp.run_lock._PATIENCE", 0.0)
    config = settings()
    folder = _interrupt(config, "between rounds")
    before = folder.status_file.read_bytes()
    lock = RunLock(folder.path)

    with pytest.raises(
        CheckpointError, match="is in progress in another process; wait for its end"
    ):
        _resume(folder, config)

    lock.release()
    assert folder.status_file.read_bytes() == before
    assert "error: the run" in capsys.readouterr().out
    _resume(folder, config)
    assert folder.state() == "completed"


def test_resuming_trains_only_what_is_left(settings: Settings) -> None:
    config, grid = settings(), FakeGrid()
    folder = _interrupt(config, "between rounds")

    _resume(folder, config, grid)

    assert {round for round, _ in grid.trained()} == {3}


def test_a_corrupt_checkpoint_is_named_and_the_one_before_used(
    settings: Settings, uninterrupted: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    config, grid = settings(), FakeGrid()
    whole = uninterrupted(config)
    folder = _interrupt(config, "between rounds")
    state = folder.checkpoint / "round-000002" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"\x00")
    capsys.readouterr()

    _resume(folder, config, grid)

    text = capsys.readouterr().out
    assert "checkpoint round-000002 is damaged: state.safetensors" in text
    assert "resumed after round 1 of 3" in text
    assert _comparable(whole) == _comparable(folder)


def test_another_setting_is_named(settings: Settings) -> None:
    folder = _interrupt(settings(), "between rounds")

    with pytest.raises(CheckpointError, match=r"'train.learning-rate' is 0.5, but the run to"):
        _resume(folder, settings(train__learning_rate=0.5))
    assert folder.read_status()["exit_code"] == 6


def test_other_records_of_the_same_number_are_refused(settings: Settings) -> None:
    def grid(digest: str) -> FakeGrid:
        made = FakeGrid()
        made.sites["Hungary"].changes = {"data_digest": digest}
        return made

    config = settings()
    folder = _interrupt(config, "between rounds", grid=grid("d1"))

    with pytest.raises(CheckpointError, match=r"site Hungary: data digest: d2, but the .* had d1"):
        _resume(folder, config, grid("d2"))
    _resume(folder, config, grid("d1"))
    assert folder.read_status()["state"] == "completed"


@pytest.mark.parametrize(
    "change",
    [
        {"federation__progress_interval": 99.0},
        {"output_dir": "/elsewhere"},
        {"federation__min_replies": 3},
        {"federation__min_sites": 3},
        {"federation__connect_timeout": 0.4},
        {"federation__handshake_timeout": 0.4},
        {"federation__round_timeout": 0.4},
        {"federation__max_round_retries": 0},
        {"federation__max_payload_mb": 1.0},
        {"federation__keep_checkpoints": 5},
        {"federation__local_only": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_setting_without_influence_may_differ(settings: Settings, change: dict[str, Any]) -> None:
    config = settings()
    folder = _interrupt(config, "between rounds")

    _resume(
        folder,
        config.with_changes({k.replace("__", ".").replace("_", "-"): v for k, v in change.items()}),
    )

    assert folder.read_status()["state"] == "completed"


def test_a_run_that_lost_a_site_goes_on_with_fewer_replies(settings: Settings) -> None:
    config, grid = settings(federation__max_round_retries=0), FakeGrid()
    grid.inject("Hungary", silent, round=2)
    folder = RunFolder.create(config)
    with pytest.raises(MissingReplies, match=r"resume with a lower federation\.min-replies"):
        run(grid, config, folder, 1)
    grid = FakeGrid()
    grid.inject("Hungary", silent, round=2)
    grid.inject("Hungary", silent, round=3)

    _resume(folder, config.with_changes({"federation.min-replies": 3}), grid)

    rows = [row for row in folder.read_metrics() if row["site"] is None]
    assert [(row["round"], row["replies"]) for row in rows] == [(1, 4), (2, 3), (3, 3)]
    stored = json.loads(folder.config_file.read_text())
    assert stored["settings"]["federation.min-replies"] == 3  # a second resume keeps it
    assert stored["settings"]["resume"] == ""
    assert set(stored["sites"]) == set(HOSPITALS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"base_model_digest": "c" * 64}, "base model of the sites: ccc"),
        ({"label_map": ["ill", "healthy"]}, "label map of the sites: "),
        ({"torch_version": "2.14.0"}, "torch version of the sites: 2.14.0, but .* had 2.13.0"),
        ({"dtype": "bf16"}, "dtype of the sites: bf16, but the run to resume had fp32"),
    ],
)
def test_other_models_or_labels_are_refused(
    settings: Settings, change: dict[str, Any], sentence: str
) -> None:
    folder = _interrupt(settings(), "between rounds")
    grid = FakeGrid()
    for site in grid.sites.values():
        site.changes = change

    with pytest.raises(CheckpointError, match=sentence):
        _resume(folder, settings(), grid)


def test_the_assigned_number_of_threads_belongs_to_the_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with other cores the sites are told the number that the first one assigned."""
    describe = FakeSite._describe

    def with_cores(cores: int) -> None:
        def described(site: FakeSite, config: RunConfig) -> dict[str, Any]:
            return {**describe(site, config), "threads": config.train.threads or cores}

        monkeypatch.setattr(FakeSite, "_describe", described)

    with_cores(2)
    folder = _interrupt(settings(), "between rounds")
    stored = json.loads(folder.config_file.read_text())
    assert stored["settings"]["train.threads"] == 2

    with_cores(8)
    for again in (settings(), RunConfig.from_flat(stored["settings"])):
        shutil.rmtree(copy := folder.path.with_name("copy"), ignore_errors=True)
        shutil.copytree(folder.path, copy)
        grid = FakeGrid()
        _resume(RunFolder(copy), again, grid)
        assert {i.config.train.threads for i in grid.sent} == {2}
    with pytest.raises(
        CheckpointError, match=r"'train\.threads' is 8, but the run to resume has 2"
    ):
        _resume(folder, settings(train__threads=8), FakeGrid())


def test_other_sites_or_records_are_refused(settings: Settings) -> None:
    folder = _interrupt(settings(), "between rounds")

    with pytest.raises(CheckpointError, match=r"site Hungary: records: .*61"):
        _resume(folder, settings(), FakeGrid({**HOSPITALS, "Hungary": 61}))
    with pytest.raises(CheckpointError, match=r"site Basel: .* no such site"):
        _resume(folder, settings(), FakeGrid({**HOSPITALS, "Basel": 9}))


def test_metrics_that_lost_rows_are_refused(settings: Settings) -> None:
    folder = _interrupt(settings(), "between rounds")
    folder.metrics_file.write_text("")

    with pytest.raises(CheckpointError, match="restore the file or start a new run"):
        _resume(folder, settings())


def test_no_checkpoint_no_resume(settings: Settings) -> None:
    folder = _interrupt(settings(), "between rounds")
    shutil.rmtree(folder.checkpoint)

    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*there is none"):
        _resume(folder, settings())


def test_a_full_disk_is_one_sentence(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    config, grid = settings(), FakeGrid()
    folder = RunFolder.create(config)
    original = checkpoint_module.write_folder

    def full(target: Path, fill: Callable[[Path], None]) -> None:
        if target.name == "round-000002":
            raise OSError(28, "No space left on device")
        original(target, fill)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "write_folder", full)
        with pytest.raises(CheckpointError, match=r"round 2: .*No space left on device; earlier"):
            run(grid, config, folder, 1)
    assert newest_checkpoint(folder.checkpoint).round == 1
    _resume(folder, config)
    assert folder.read_status()["state"] == "completed"


@pytest.mark.parametrize("key", ["adapter", "optimizer.momentum"])
def test_a_checkpoint_that_the_method_does_not_know_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Whole on disk, and without what another version of the method would keep."""
    config = settings(federation__rounds=1)
    folder = RunFolder.create(config)
    run(FakeGrid(), config, folder, 1)
    strategy = type(build_strategy(config))

    def load(self: object, state: dict[str, Any]) -> None:
        raise KeyError(key)

    monkeypatch.setattr(strategy, "load_state_dict", load)
    again = config.with_changes({"resume": str(folder.path), "federation.rounds": 1})
    with pytest.raises(CheckpointError, match=rf"round 1 is not of .* \(KeyError\('{key}'\)\);"):
        run(FakeGrid(), again, RunFolder.open(folder.path), 2)

    assert folder.state() == "completed"
