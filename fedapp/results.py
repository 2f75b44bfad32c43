"""The run folder: what a run leaves behind, and the contract with everything downstream.

Every file is either the old or the new version, except ``metrics.jsonl``, which only grows.
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import fedapp
from fedapp.atomic import overwrite, sync_folder, write_bytes
from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.paths import user_path
from fedapp.run_lock import is_held
from fedapp.text import clean

_FULL = (errno.ENOSPC, errno.EDQUOT)

# How `fedapp.atomic` and `fedapp.atomic_folder` name what is not complete.
_HALF_FILE = re.compile(
    r"\.(config\.json|metrics\.jsonl|summary\.json|status\.json|report\.html)\.[a-z0-9_]{8}"
)
_HALF_FOLDER = re.compile(r"\.adapter\.(old-)?[a-z0-9_]{8}")

State = Literal["running", "completed", "failed", "stopped"]


class RunFolder:
    """The files of one run.

    Parameters
    ----------
    path : Path
        An existing folder; see `create` and `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.status_file = self.path / "status.json"
        self.report_file = self.path / "report.html"
        self.progress_file = self.path / "progress.jsonl"
        self.adapter = self.path / "adapter"
        self.checkpoint = self.path / "checkpoint"
        self.ledger = self.path / "ledger"  # of hospitals that exchange directly, a file each
        self.sites = self.path / "sites"  # in a simulation, what each site keeps between rounds

    @classmethod
    def create(cls, config: RunConfig) -> RunFolder:
        """Make the folder of a new run, with its ``config.json``; point ``latest`` beside it at it.

        Raises
        ------
        ConfigError
            If a folder of that name is not free (`is_free`), or cannot be made.
        """
        root = user_path(config.output_dir or "runs").absolute()
        try:
            path = _named(root / config.name) if config.name else _timed(root, config.method)
            folder = cls(path)
            folder.write_config(config, versions())
            folder.point_latest()
        except OSError as error:
            raise ConfigError(
                f"the run folder below {root} cannot be made ({error}); set output-dir to a "
                "folder you may write to"
            ) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of an earlier run, following ``latest``.

        Raises
        ------
        CheckpointError
            If it is not the folder of a run.
        """
        resolved = user_path(path).resolve()
        if not (resolved / "config.json").is_file():
            raise CheckpointError(
                f"{resolved} is not the folder of a run (no config.json); give the path that the "
                "run printed"
            )
        return cls(resolved)

    def check_adapter(self) -> None:
        """Find out before the rounds whether ``adapter/`` can be written after them.

        Raises
        ------
        CheckpointError
            If it is a link or a file.
        """
        if self.adapter.is_symlink() or (self.adapter.exists() and not self.adapter.is_dir()):
            raise CheckpointError(
                f"{self.adapter} is a {'link' if self.adapter.is_symlink() else 'file'}, expected "
                "a folder or nothing; move it away and resume"
            )

    def point_latest(self) -> None:
        """Point the symbolic link ``latest`` beside the folder at it."""
        _point(self.path.parent / "latest", self.path)

    def write_config(self, config: RunConfig, versions: Mapping[str, str], **more: Any) -> None:
        """Write ``config.json``: settings, their digest, seed, versions, and ``more``."""
        _write_json(
            self.config_file,
            {
                "method": config.method,
                "seed": config.seed,
                "digest": config.digest(),
                "settings": config.to_flat(),
                "versions": dict(versions),
                **more,
            },
        )

    def read_config(self) -> dict[str, Any]:
        """Return ``config.json``, whose ``settings`` and ``sites`` are tables.

        Raises
        ------
        CheckpointError
            If it cannot be read, or holds no settings.
        """
        try:
            content = json.loads(self.config_file.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
                raise ValueError("it holds no settings")
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.config_file} cannot be read: {clean(str(error), 300)}; restore it"
            ) from None
        told = content.get("sites")
        found = told.items() if isinstance(told, dict) else ()
        return {**content, "sites": {k: v for k, v in found if isinstance(v, dict)}}

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to ``metrics.jsonl`` and flush them to disk.

        Numbers that are not finite are left out: JSON has no word for them.
        """
        data = "".join(json.dumps(finite(row)) + "\n" for row in rows).encode()
        new = not self.metrics_file.exists()
        with self.metrics_file.open("ab") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            sync_folder(self.path)

    @property
    def metrics_size(self) -> int:
        """Bytes of ``metrics.jsonl`` so far."""
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def truncate_metrics(self, size: int) -> None:
        """Drop what was appended after the file had ``size`` bytes.

        Raises
        ------
        CheckpointError
            If the file is shorter: rows of the run are missing.
        """
        if self.metrics_size < size:
            raise CheckpointError(
                f"{self.metrics_file} has {self.metrics_size} bytes, but the checkpoint was made "
                f"at {size}; restore the file or start a new run"
            )
        if self.metrics_size > size:
            with self.metrics_file.open("rb") as stream:
                kept = stream.read(size)
            write_bytes(self.metrics_file, kept)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all rows of ``metrics.jsonl``.

        Raises
        ------
        CheckpointError
            If a line is not a JSON object.
        """
        if not self.metrics_file.exists():
            return []
        try:
            lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line]
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.metrics_file} is damaged ({error}); restore it or start a new run"
            ) from None
        if not all(isinstance(row, dict) for row in rows):
            raise CheckpointError(
                f"{self.metrics_file} holds a line that is no JSON object; restore it or start a "
                "new run"
            )
        return rows

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        _write_json(self.summary_file, finite(summary))

    def write_status(
        self,
        state: State,
        error: str | None = None,
        exit_code: int = 0,
        run_id: int | None = None,
    ) -> None:
        """Write ``status.json``; without ``run_id`` the one that is there stays."""
        if run_id is None:
            run_id = _known(self.read_status()).get("run_id", 0)
        self._write_status(
            {"state": state, "error": error, "exit_code": exit_code, "run_id": run_id}
        )

    def begin_status(self, run_id: int) -> None:
        """Write that the run runs, and keep beside it the status of one that was completed.

        Until `write_status` drops it, the run to resume is as it was; see `end_status`.
        """
        status = self.read_status()
        earlier = _known(status.get("earlier")) or _known(status)
        kept = {"earlier": earlier} if earlier.get("state") == "completed" else {}
        self._write_status(
            {"state": "running", "error": None, "exit_code": 0, "run_id": run_id, **kept}
        )

    def end_status(self, state: State, error: str, exit_code: int, run_id: int) -> None:
        """Write how a run ended that did not complete.

        A completed run whose resumption was refused stays completed, since nothing in it was
        changed; ``refused`` tells the reason.
        """
        earlier = _known(self.read_status().get("earlier"))
        if not earlier:
            self.write_status(state, error, exit_code, run_id)
            return
        refused = {"error": error, "exit_code": exit_code, "run_id": run_id}
        self._write_status({**earlier, "refused": refused})

    def _write_status(self, status: Mapping[str, Any]) -> None:
        try:
            _write_json(self.status_file, status)
        except OSError as error:
            if error.errno not in _FULL or not self.status_file.is_file():
                raise
            overwrite(self.status_file, _json(status))

    def read_status(self) -> dict[str, Any]:
        """Return ``status.json``; one that is absent, cut short or no status is an empty dict."""
        if not self.status_file.exists():
            return {}
        try:
            status = json.loads(self.status_file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            return {}
        return status if isinstance(status, dict) else {}

    def state(self) -> str:
        """Return the state that ``status.json`` tells, or "" if there is none.

        A run that it calls running is "interrupted" if its process has gone: killed, or lost with
        the machine. It can be resumed.
        """
        status = self._readable_status()
        if status.get("state") == "running" and is_held(self.path) is False:
            now = self._readable_status()
            if now != status:  # it has ended since, or another has begun
                return self.state()
            # A completed run whose resumption had changed nothing yet is as it was.
            status = _known(status.get("earlier")) or {"state": "interrupted"}
        return str(_known(status).get("state") or "")

    def _readable_status(self) -> dict[str, Any]:
        try:
            return self.read_status()
        except OSError:
            return {}

    def remove_leftovers(self) -> None:
        """Remove what a killed process of the run had not finished writing."""
        for path in sorted(self.path.iterdir()):
            if _HALF_FILE.fullmatch(path.name) and path.is_file():
                path.unlink()
            elif _HALF_FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                if ".old-" in path.name and not self.adapter.exists():
                    path.rename(self.adapter)  # killed between the two renames of its replacement
                else:
                    shutil.rmtree(path, ignore_errors=True)


def _known(status: Any) -> dict[str, Any]:
    """Return the plain entries of a status that somebody else may have written."""
    entries = status.items() if isinstance(status, dict) else ()
    return {
        key: value
        for key, value in entries
        if (key in ("state", "error") and (value is None or isinstance(value, str)))
        or (key in ("exit_code", "run_id") and type(value) is int)
    }


def is_free(path: Path) -> bool:
    """Whether a new run may write to ``path``.

    It may if nothing is there, or only what a run left that ended before its first checkpoint.
    """
    if not path.exists():
        return True
    if not path.is_dir():
        return False
    if not any(path.iterdir()):
        return True
    folder = RunFolder(path)
    results = (folder.metrics_file, folder.summary_file, folder.adapter, folder.report_file)
    begun = any(file.exists() for file in results) or any(folder.checkpoint.glob("round-*"))
    return folder.state() in ("failed", "stopped", "interrupted") and not begun


def versions() -> dict[str, str]:
    """Versions of what computes here, for ``config.json`` and ``summary.json``."""
    found = {"fedapp": fedapp.__version__, "python": platform.python_version()}
    for package in ("flwr", "numpy", "safetensors", "pydantic"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return {**found, "platform": platform.platform()}


def finite(value: Any) -> Any:
    """Return JSON-able data without NaN and Inf: such entries of a mapping are left out."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items() if not _is_bad(item)}
    if isinstance(value, list | tuple):
        return [None if _is_bad(item) else finite(item) for item in value]
    return value


def _is_bad(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_bytes(path, _json(data))


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def _named(path: Path) -> Path:
    if not is_free(path):
        raise ConfigError(
            f"the run folder {path} exists; choose another name, or set resume to continue it"
        )
    path.mkdir(parents=True, exist_ok=True)
    return path


def _timed(root: Path, method: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    stem = f"{method}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        try:
            (root / f"{stem}{suffix}").mkdir()
        except FileExistsError:
            continue  # another run began in the same second
        return root / f"{stem}{suffix}"
    raise ConfigError(f"{root} holds a thousand runs named {stem}; set name")


def _point(link: Path, target: Path) -> None:
    """Replace the symbolic link atomically; a real file or folder of that name is left alone."""
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.name)
    os.replace(temporary, link)
