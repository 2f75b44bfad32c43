from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_federation import initial_adapter
from memory import peak

from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.errors import CheckpointError
from server_app.checkpoint import (
    TOTALS,
    Checkpoint,
    check_settings,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

CONFIG = RunConfig.from_flat({"method": "svd"})


def _checkpoint(round: int) -> Checkpoint:
    adapter = initial_adapter(CONFIG.with_changes({"seed": round}))
    return Checkpoint(
        round=round,
        run="0123456789abcdef" * 2,
        settings=CONFIG.to_flat(),
        roster={"label map": ["a", "b"], "records": {"A": {"train": 3}}},
        sampler={"seed": 0, "next": ["A"]},
        strategy={
            "adapter": adapter,
            "momentum": adapter.map(lambda name, array: array * np.float32(0.1)),
            "counts": np.arange(5, dtype=np.int64),
            "note": {"beta": 0.1 + 0.2, "list": [1, "x", None]},
        },
        totals=dict.fromkeys(TOTALS, 0.0) | {"wall_seconds": 1 / 3},
        metrics_size=17,
    )


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    sent = _checkpoint(3)
    path = write_checkpoint(tmp_path, sent, keep=2)
    got = read_checkpoint(path)

    assert path.name == "round-000003"
    for key in ("adapter", "momentum"):
        assert got.strategy[key].digest() == sent.strategy[key].digest()
        assert got.strategy[key].layout() == sent.strategy[key].layout()
    assert np.array_equal(got.strategy["counts"], np.arange(5))
    assert got.strategy["counts"].dtype == np.int64
    assert got.strategy["note"] == sent.strategy["note"]
    for key in ("round", "run", "settings", "roster", "sampler", "totals", "metrics_size"):
        assert getattr(got, key) == getattr(sent, key)


def test_the_manifest_holds_true_digests_and_nothing_is_code(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, _checkpoint(1), keep=2)

    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {"state.safetensors", "state.json"}
    for name, entry in manifest.items():
        data = (path / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert {p.suffix for p in path.iterdir()} == {".safetensors", ".json"}


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for round in range(5):
        write_checkpoint(tmp_path, _checkpoint(round), keep=2)

    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000003", "round-000004"]
    assert newest_checkpoint(tmp_path).round == 4


def test_leftovers_and_stale_later_rounds_are_removed(tmp_path: Path) -> None:
    for round in (1, 2):
        write_checkpoint(tmp_path, _checkpoint(round), keep=3)
    (tmp_path / ".round-000003.x1").mkdir()
    (tmp_path / "round-000002" / "state.json").write_text("{}")
    assert newest_checkpoint(tmp_path).round == 1

    write_checkpoint(tmp_path, _checkpoint(1), keep=3)

    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]


def _remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def _replace(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(data) and None  # type: ignore[func-returns-value]


def _resealed(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    """Change state.json and make the manifest fit, as a buggy writer would."""

    def damage(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        change(state)
        data = json.dumps(state).encode()
        (path / "state.json").write_bytes(data)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (path / "manifest.json").write_text(json.dumps(manifest))

    return damage


def _longer(state: dict[str, object]) -> None:
    layout = state["strategy"]["adapter"]["layout"]  # type: ignore[index]
    layout["tensors"]["classifier.weight"] = [99, 1]


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no manifest": (_remove("manifest.json"), "is incomplete: no manifest.json"),
    "no tensors": (_remove("state.safetensors"), "is incomplete: no state.safetensors"),
    "cut off": (_replace("state.safetensors", b"abc"), "state.safetensors has 3 bytes that do not"),
    "other json": (_replace("state.json", b"{}"), "state.json has 2 bytes that do not match"),
    "broken manifest": (_replace("manifest.json", b"{"), "cannot be read"),
    "empty manifest": (_replace("manifest.json", b"{}"), "cannot be read"),
    "newer format": (_resealed(lambda s: s.update(format=3)), "has format 3, expected 2"),
    "missing key": (_resealed(lambda s: s.pop("sampler") and None), "cannot be read: 'sampler'"),
    "text as size": (_resealed(lambda s: s.update(metrics_size="17")), "its metrics_size is '17'"),
    "list as settings": (_resealed(lambda s: s.update(settings=[])), "its settings is of type"),
    "absurd total": (
        _resealed(lambda s: s["totals"].update(bytes_up=10**400)),  # type: ignore[attr-defined]
        "cannot be read: int too large",
    ),
    "no adapter": (
        _resealed(lambda s: s["strategy"].pop("adapter")),  # type: ignore[attr-defined]
        "cannot be read: it holds no adapter",
    ),
    "text for an adapter": (
        _resealed(lambda s: s["strategy"].update(adapter={"kind": "json", "value": "x"})),  # type: ignore[attr-defined]
        "cannot be read: it holds no adapter",
    ),
    "other shape": (_resealed(_longer), r"has shape \[2, 6\], expected \[99, 1\]"),
    "no folder": (shutil.rmtree, "is incomplete"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    damage, sentence = DAMAGES[name]
    path = write_checkpoint(tmp_path, _checkpoint(1), keep=2)
    damage(path)

    with pytest.raises(CheckpointError, match=f"checkpoint round-000001 .*{sentence}"):
        read_checkpoint(path)


def test_if_all_are_broken_each_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for round in (1, 2):
        (write_checkpoint(tmp_path, _checkpoint(round), keep=2) / "state.json").write_text("")

    with pytest.raises(CheckpointError, match="all are broken: round-000002, round-000001"):
        newest_checkpoint(tmp_path)
    assert capsys.readouterr().out.count("is damaged") == 2


def test_nothing_is_copied(tmp_path: Path) -> None:
    large = np.ones((512, 1024), np.float32)
    state = {"adapter": Adapter({"x": LoraPair(large, large, 1.0)}, {"head": large})}
    checkpoint = replace(_checkpoint(1), strategy=state)

    assert peak(lambda: write_checkpoint(tmp_path, checkpoint, keep=1)) < large.nbytes / 4


@pytest.mark.parametrize("flushed", range(6))
def test_a_failing_write_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: int
) -> None:
    write_checkpoint(tmp_path, _checkpoint(1), keep=1)
    left = [None] * flushed

    def full(handle: int) -> None:
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, _checkpoint(2), keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]
    assert newest_checkpoint(tmp_path).round == 1


@pytest.mark.parametrize(
    ("saved", "key"),
    [
        ({"lora.rank": 4}, "lora.rank"),
        ({"train.learning-rate": 1.0, "seed": 9}, "seed"),
        ({"method": "fedavg"}, "method"),
        ({"data.validation-fraction": 0.85}, "data.validation-fraction"),
        ({"old.setting": 1}, "old.setting"),
    ],
)
def test_the_first_different_setting_is_named(saved: dict[str, object], key: str) -> None:
    with pytest.raises(CheckpointError, match=f"setting '{key}' is"):
        check_settings({**CONFIG.to_flat(), **saved}, CONFIG)  # type: ignore[dict-item]


def test_names_and_paths_may_differ() -> None:
    saved = {**CONFIG.to_flat(), "name": "x", "output-dir": "/y", "resume": "/z"}

    check_settings(saved, CONFIG)


def test_only_its_own_leftovers_and_checkpoints_are_removed(tmp_path: Path) -> None:
    foreign = [tmp_path / ".ssh", tmp_path / "round-000099", tmp_path / ".round-notes"]
    for folder in foreign:
        folder.mkdir()
        (folder / "precious").write_text("mine")

    for round in range(4):
        write_checkpoint(tmp_path, _checkpoint(round), keep=1)

    assert all((folder / "precious").exists() for folder in foreign)
    assert not (tmp_path / "round-000002").exists()


def test_a_linked_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoint").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CheckpointError, match="is a link"):
        write_checkpoint(tmp_path / "checkpoint", _checkpoint(1), keep=1)
    with pytest.raises(CheckpointError, match="is a link"):
        newest_checkpoint(tmp_path / "checkpoint")


def test_a_deep_manifest_is_a_broken_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, _checkpoint(1), keep=2)
    write_checkpoint(tmp_path, _checkpoint(2), keep=2)
    (tmp_path / "round-000002/manifest.json").write_text("[" * 100_000)

    assert newest_checkpoint(tmp_path).round == 1


def test_a_checkpoint_under_another_rounds_name_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, _checkpoint(1), keep=1).rename(tmp_path / "round-000007")

    with pytest.raises(CheckpointError, match="round-000007"):
        newest_checkpoint(tmp_path)
