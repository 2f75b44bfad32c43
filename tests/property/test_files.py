"""Damaged files of a run: a checkpoint, an adapter of PEFT, metrics, a run folder for the report.

A reader names what is wrong, or reads exactly what was written; it never crashes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_messages import CONFIG, MODEL
from mutations import dump, mutate_bytes, mutate_text, mutate_value
from run_folders import write_run

from fedapp.errors import CheckpointError, ConfigError, FedappError
from fedapp.peft_format import load_peft, save_peft
from fedapp.report import write_report
from fedapp.results import RunFolder
from server_app.checkpoint import (
    TOTALS,
    Checkpoint,
    check_roster,
    check_settings,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

Files = dict[str, bytes]
ROSTER = {"label map": ["no", "yes"], "records": {"A": {"train": 3}}, "threads": 1}
PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 16, "bias": "none", "alpha_pattern": {}}


def read_all(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def damage(rng: random.Random, files: Files) -> Files:
    """Change one file, or two."""
    changed = dict(files)
    for name in rng.sample(sorted(files), min(len(files), rng.choice([1, 1, 1, 2]))):
        changed[name] = damage_file(rng, name, files[name])
    return changed


def damage_file(rng: random.Random, name: str, data: bytes) -> bytes:
    """Change bytes, or the JSON that they are, or the JSON header of a safetensors file."""
    kind = rng.random()
    if kind < 0.3 or not data:
        return mutate_bytes(rng, data)
    if name.endswith(".safetensors"):
        size = 8 + int.from_bytes(data[:8], "little")
        header = mutate_json(rng, data[8:size])
        return len(header).to_bytes(8, "little") + header + data[size:]
    if name.endswith(".jsonl"):
        lines = data.splitlines(keepends=True)
        number = rng.randrange(len(lines))
        lines[number] = mutate_json(rng, lines[number]) + b"\n"
        return b"".join(lines)
    return mutate_json(rng, data)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.4:
        return mutate_text(rng, data.decode()).encode(errors="surrogatepass")
    value = json.loads(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        value = mutate_value(rng, value)
    return dump(value).encode()


def check_sentence(text: str) -> None:
    """A refusal is one line of bounded length."""
    assert text
    assert len(text) < 3000
    assert "\n" not in text


def feed(
    folder: Path,
    files: Files,
    count: int,
    seed: int,
    read: Callable[[Files], str],
    seal: Callable[[random.Random, Files], Files] = lambda rng, files: files,
) -> Counter[str]:
    """Write ``count`` damaged versions of ``files`` to ``folder``, one after the other."""
    rng, outcomes = random.Random(seed), Counter[str]()
    for number in range(count):
        damaged = seal(rng, damage(rng, files))
        for name, data in damaged.items():
            (folder / name).write_bytes(data)
        try:
            outcomes[read(damaged)] += 1
        except Exception as error:
            changed = {n: d[:1500] for n, d in damaged.items() if d != files[n]}
            raise AssertionError(f"seed {seed}, number {number}: {changed!r:.4000}") from error
    return outcomes


counts = pytest.mark.parametrize(
    ("count", "seed"), [(200, 0), pytest.param(2000, 1, marks=pytest.mark.slow)]
)


# ---- checkpoints -------------------------------------------------------------------------------


def checkpoint() -> Checkpoint:
    return Checkpoint(
        round=3,
        run="0" * 32,
        settings=CONFIG.to_flat(),
        roster=ROSTER,
        sampler={"seed": 0, "next": ["A"]},
        strategy={"adapter": MODEL, "counts": np.arange(5), "note": {"beta": 0.1, "x": None}},
        totals=dict.fromkeys(TOTALS, 0.25),
        metrics_size=17,
    )


def same(one: Checkpoint, other: Checkpoint) -> bool:
    states = [dict(c.strategy) for c in (one, other)]
    adapters = [state.pop("adapter") for state in states]
    arrays = [state.pop("counts") for state in states]
    return (
        adapters[0].digest() == adapters[1].digest()
        and np.array_equal(*arrays)
        and states[0] == states[1]
        and all(
            getattr(one, name) == getattr(other, name)
            for name in ("round", "run", "settings", "roster", "sampler", "totals", "metrics_size")
        )
    )


@counts
def test_a_damaged_checkpoint_is_named_or_is_the_checkpoint(
    tmp_path: Path, count: int, seed: int
) -> None:
    written = checkpoint()
    folder = write_checkpoint(tmp_path, written, keep=1)

    def read(_: Files) -> str:
        try:
            got = read_checkpoint(folder)
        except CheckpointError as error:
            check_sentence(error.message)
            return "refused"
        assert same(got, written)
        return "read"

    outcomes = feed(folder, read_all(folder), count, seed, read)
    print(dict(outcomes))
    assert outcomes["refused"] > 0.9 * count


def sealed(rng: random.Random, files: Files) -> Files:
    """Make the manifest fit, as a buggy writer would."""
    manifest = {
        name: {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()}
        for name in ("state.json", "state.safetensors")
    }
    return {**files, "manifest.json": json.dumps(manifest).encode()}


@counts
def test_a_checkpoint_of_a_faulty_writer_is_named_or_can_be_resumed(
    tmp_path: Path, count: int, seed: int
) -> None:
    folder = write_checkpoint(tmp_path, checkpoint(), keep=1)

    def read(_: Files) -> str:
        try:
            got = read_checkpoint(folder)
            check_settings(got.settings, CONFIG)
            check_roster(got.roster, ROSTER)
        except CheckpointError as error:
            check_sentence(error.message)
            return "refused"
        assert (got.round, type(got.metrics_size)) == (3, int)
        assert all(type(total) is float for total in got.totals.values())
        return "read"

    print(dict(feed(folder, read_all(folder), count, seed, read, sealed)))


def test_a_damaged_newest_checkpoint_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = write_checkpoint(tmp_path, checkpoint(), keep=2)
    folder = tmp_path / "round-000009"
    folder.mkdir()
    files = read_all(older)

    def read(damaged: Files) -> str:
        assert same(newest_checkpoint(tmp_path), checkpoint())
        return "passed over"

    feed(folder, files, 100, 0, read)


# ---- adapters ----------------------------------------------------------------------------------


@counts
def test_a_damaged_adapter_is_named_or_is_an_adapter(tmp_path: Path, count: int, seed: int) -> None:
    folder = tmp_path / "adapter"
    save_peft(MODEL, folder, PEFT, "# card\n")
    files = read_all(folder)
    del files["README.md"]

    def read(_: Files) -> str:
        try:
            adapter = load_peft(folder)
        except ConfigError as error:
            check_sentence(error.message)
            return "refused"
        assert adapter.is_finite()
        for pair in adapter.pairs.values():
            assert pair.b_mr.shape[1] == pair.a_rn.shape[0] > 0
            assert 0 < pair.scaling <= 1e6
        return "read"

    outcomes = feed(folder, files, count, seed, read)
    print(dict(outcomes))
    assert outcomes["refused"] > 0.3 * count


# ---- metrics and reports -----------------------------------------------------------------------


@counts
def test_damaged_metrics_are_named_or_rows(tmp_path: Path, count: int, seed: int) -> None:
    folder = RunFolder(write_run(tmp_path / "run"))
    files = {"metrics.jsonl": folder.metrics_file.read_bytes()}

    def read(damaged: Files) -> str:
        try:
            rows = folder.read_metrics()
        except CheckpointError as error:
            check_sentence(error.message)
            return "refused"
        assert all(isinstance(row, dict) for row in rows)
        assert len(rows) <= damaged["metrics.jsonl"].count(b"\n") + 1
        return "read"

    print(dict(feed(folder.path, files, count, seed, read)))


@pytest.mark.parametrize(("count", "seed"), [(5, 0), pytest.param(30, 1, marks=pytest.mark.slow)])
def test_a_damaged_run_folder_gets_a_report(tmp_path: Path, count: int, seed: int) -> None:
    folder = write_run(tmp_path / "run", rounds=2)
    files = read_all(folder)

    def read(_: Files) -> str:
        try:
            page = write_report(folder).read_text(encoding="utf-8")
        except FedappError as error:
            check_sentence(error.message)
            return "refused"
        assert page.startswith("<!doctype html>")
        assert page.rstrip().endswith("</html>")
        assert "<b>" not in page.replace("&lt;b&gt;", "")
        return "drawn"

    print(dict(feed(folder, files, count, seed, read)))
