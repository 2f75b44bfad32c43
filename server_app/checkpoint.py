"""Checkpoints: one folder each, complete or absent, verified before it is believed.

``checkpoint/round-000003/`` holds ``state.safetensors`` (numbers), ``state.json`` (the rest) and
``manifest.json`` (size and SHA-256 of both). Nothing in it is code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load

from fedapp.adapter import Adapter
from fedapp.atomic_folder import write_folder
from fedapp.config import RunConfig, Scalar
from fedapp.errors import CheckpointError, ConfigError
from fedapp.state import State, join_state, split_state
from fedapp.tensor_file import Piece, safetensors_pieces
from fedapp.text import clean, shown
from server_app.log import warn

FORMAT = 2
_TENSORS, _STATE, _MANIFEST = "state.safetensors", "state.json", "manifest.json"
_NAME = re.compile(r"round-(\d{6,})")
_LONGEST_REASON = 300
_LEFTOVER = re.compile(r"\.round-\d{6,}\.")  # of `write_folder`, when it was killed
TOTALS = ("wall_seconds", "training_seconds", "bytes_up", "bytes_down")
_KINDS: dict[str, type] = {
    **{"round": int, "run": str, "metrics_size": int},
    **dict.fromkeys(("settings", "roster", "sampler", "strategy", "totals"), dict),
}


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round.

    Attributes
    ----------
    round : int
        The last round that is complete; 0: the initial model, before round 1.
    run : str
        Identity of the run, by which sites find what they kept.
    settings : dict
        The run's settings, flat.
    roster : dict
        ``Roster.digests()``.
    sampler : dict
        Which sites train next.
    strategy : State
        ``BaseStrategy.state_dict()``: the model and whatever the method remembers.
    totals : dict of str to float
        Seconds and bytes so far.
    metrics_size : int
        Bytes of ``metrics.jsonl`` at that moment.
    """

    round: int
    run: str
    settings: dict[str, Scalar]
    roster: dict[str, Any]
    sampler: dict[str, Any]
    strategy: State
    totals: dict[str, float]
    metrics_size: int


def write_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint and remove all but the ``keep`` newest.

    Tensors go to disk from where they are, and are hashed there meanwhile: nothing is copied.

    Raises
    ------
    OSError
        If it cannot be written. The earlier checkpoints are untouched then.
    """
    tensors, strategy = split_state(checkpoint.strategy)
    described = {
        "format": FORMAT,
        "round": checkpoint.round,
        "run": checkpoint.run,
        "settings": checkpoint.settings,
        "roster": checkpoint.roster,
        "sampler": checkpoint.sampler,
        "strategy": strategy,
        "totals": checkpoint.totals,
        "metrics_size": checkpoint.metrics_size,
    }
    files: dict[str, Sequence[Piece]] = {
        _TENSORS: safetensors_pieces(tensors),
        _STATE: [json.dumps(described, allow_nan=False).encode()],
    }

    def fill(temporary: Path) -> None:
        manifest = {name: _write(temporary / name, pieces) for name, pieces in files.items()}
        (temporary / _MANIFEST).write_bytes(json.dumps(manifest, indent=2).encode())

    target = _own_folder(folder) / _folder_name(checkpoint.round)
    write_folder(target, fill)
    _prune(folder, checkpoint.round, keep)
    return target


def _write(path: Path, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Write and flush a file; return its entry in the manifest."""
    with ThreadPoolExecutor(1) as pool, path.open("xb") as stream:
        digest = pool.submit(_sha256, pieces)
        stream.writelines(pieces)
        stream.flush()
        os.fsync(stream.fileno())
        return {"bytes": stream.tell(), "sha256": digest.result()}


def _sha256(pieces: Sequence[Piece]) -> str:
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Return the newest checkpoint that is whole; each broken one is named and passed over.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    broken = []
    for path in sorted(_rounds(_own_folder(folder)).values(), reverse=True):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            warn(f"{error.message}; the one before it is used")
            broken.append(path.name)
    found = f"all are broken: {', '.join(broken)}" if broken else "there is none"
    raise CheckpointError(f"no usable checkpoint in {folder} ({found}); start a new run")


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed while it wrote a checkpoint has left in ``folder``."""
    for path in _own_folder(folder).iterdir() if folder.is_dir() else ():
        if _LEFTOVER.match(path.name):
            shutil.rmtree(path, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises
    ------
    CheckpointError
        Naming the file that is missing, damaged or of another format.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        data = {name: (path / name).read_bytes() for name in (_TENSORS, _STATE)}
        for name, content in data.items():
            if hashlib.sha256(content).hexdigest() != manifest[name]["sha256"]:
                raise CheckpointError(
                    f"checkpoint {path.name} is damaged: {name} has {len(content)} bytes that do "
                    f"not match the manifest ({shown(manifest[name]['bytes'])} bytes)"
                )
        described = json.loads(data[_STATE])
        if described["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path.name} has format {shown(described['format'])}, expected {FORMAT}"
            )
        for key, kind in _KINDS.items():
            if type(described[key]) is not kind:
                raise TypeError(f"its {key} is {shown(described[key])}, expected {kind.__name__}")
        if path.name != _folder_name(described["round"]):
            raise CheckpointError(
                f"checkpoint {path.name} is of round {described['round']}; put each folder back "
                "under its own name"
            )
        strategy = join_state(load(data[_TENSORS]), described["strategy"])
        if not isinstance(strategy.get("adapter"), Adapter):
            raise CheckpointError(f"checkpoint {path.name} cannot be read: it holds no adapter")
        return Checkpoint(
            round=described["round"],
            run=described["run"],
            settings=described["settings"],
            roster=described["roster"],
            sampler=described["sampler"],
            strategy=strategy,
            totals={name: float(described["totals"][name]) for name in TOTALS},
            metrics_size=described["metrics_size"],
        )
    except FileNotFoundError as error:
        name = Path(str(error.filename)).name
        raise CheckpointError(f"checkpoint {path.name} is incomplete: no {name}") from None
    except (
        *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError),
        SafetensorError,
    ) as error:
        reason = clean(str(error), _LONGEST_REASON)
        raise CheckpointError(f"checkpoint {path.name} cannot be read: {reason}") from None


def check_settings(saved: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse to continue a run with other settings that influence the result.

    Raises
    ------
    CheckpointError
        Naming the first such setting.
    """
    current = config.to_flat()
    for key in [*current, *(key for key in saved if key not in current)]:
        if saved.get(key) == current.get(key):
            continue
        if _matters(key, saved, config):
            raise CheckpointError(
                f"setting '{clean(key)}' is {shown(current.get(key))}, but the run to resume has "
                f"{shown(saved.get(key))}; resume with the settings in its config.json, or start a "
                "new run"
            )


def check_roster(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to continue a run with other sites, data or models.

    Raises
    ------
    CheckpointError
        Naming the first difference.
    """
    for name, before in saved.items():
        now = current.get(name)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            # A site need not tell a digest of its data; where it did both times, they are equal.
            both = set(before) & set(now) if name == "data digest" else set(before) | set(now)
            for site in sorted(both):
                if before.get(site) != now.get(site):
                    raise CheckpointError(
                        f"{clean(name)}: {_cut(now.get(site, 'absent'))}, but the run to resume "
                        f"had {_cut(before.get(site, 'no such site'))}; resume with the same sites "
                        "and data",
                        site=clean(site),
                    )
            continue
        raise CheckpointError(
            f"{clean(name)} of the sites: {_cut(now)}, but the run to resume had {_cut(before)}; "
            "resume with the same models, data, versions and threads"
        )


def _cut(value: Any) -> str:
    """Write a value, as far as it can be read in a sentence."""
    try:
        return clean(str(value), _LONGEST_REASON)
    except RecursionError:
        return shown(value)


def _matters(key: str, saved: Mapping[str, Scalar], config: RunConfig) -> bool:
    if key not in saved or key not in config.to_flat():
        return True
    try:
        return config.with_changes({key: saved[key]}).digest() != config.digest()
    except ConfigError:  # one old value may contradict the other new ones
        return True


def _folder_name(round: int) -> str:
    return f"round-{round:06d}"


def _rounds(folder: Path) -> dict[int, Path]:
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found[int(match[1])] = path
    return found


def _prune(folder: Path, newest: int, keep: int) -> None:
    """Remove old checkpoints, and nothing that this module did not write."""
    rounds = _rounds(folder)
    # Later rounds can exist only when a damaged one was passed over; they are of no use any more.
    stale = [path for number, path in rounds.items() if number > newest]
    old = sorted(number for number in rounds if number <= newest)[:-keep]
    for path in [*stale, *(rounds[number] for number in old)]:
        if {entry.name for entry in path.iterdir()} <= {_TENSORS, _STATE, _MANIFEST}:
            shutil.rmtree(path, ignore_errors=True)
    remove_leftovers(folder)


def _own_folder(folder: Path) -> Path:
    if folder.is_symlink():
        raise CheckpointError(
            f"{folder} is a link; put the run's own checkpoint folder back, since old checkpoints "
            "are removed there"
        )
    return folder
