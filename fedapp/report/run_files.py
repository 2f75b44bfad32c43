"""Lenient readers of a run folder's files: every oddity becomes a note, not a crash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedapp.config import flatten

Metrics = Mapping[str, Any]
Phases = Mapping[str, Metrics]


def read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """Read a JSON object; missing or broken gives an empty one and a note."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({type(error).__name__}).")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{path.name} does not hold a JSON object.")
        return {}
    return value


def read_rows(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read metrics.jsonl in order of round; unusable lines are counted in a note.

    A run that was killed may leave half a line at the end.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        notes.append(f"{path.name} is missing.")
        return []
    rows, bad = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            bad += 1
            continue
        if isinstance(row, dict) and type(row.get("round")) is int:
            rows.append(row)
        else:
            bad += 1
    if bad:
        notes.append(f"{bad} unreadable line{'s' if bad > 1 else ''} of {path.name} left out.")
    return sorted(rows, key=lambda row: int(row["round"]))


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of config.json as dotted keys, whether nested, flat, or under a key."""
    for key in ("settings", "config"):
        if isinstance(config.get(key), dict):
            return flatten(config[key])
    beside = {"versions", "environment", "run_id", "digest", "sites"}
    return flatten({key: value for key, value in config.items() if key not in beside})


def last_per_round(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the newest row of every round: a resumed run may repeat one."""
    return list({int(row["round"]): row for row in rows}.values())


def split_of(row: Mapping[str, Any]) -> str:
    """Split of a site row."""
    return str(row.get("split") or "validation")


def phase_table(value: Any) -> dict[str, Phases]:
    """Site -> phase -> metrics with everything of another shape left out."""
    if not isinstance(value, dict):
        return {}
    return {
        str(site): {str(p): m for p, m in phases.items() if isinstance(m, dict)}
        for site, phases in value.items()
        if isinstance(phases, dict)
    }


def objects(value: Any) -> dict[str, Mapping[str, Any]]:
    """The entries of a mapping that are mappings themselves, sorted by name."""
    if not isinstance(value, dict):
        return {}
    return {str(key): value[key] for key in sorted(value) if isinstance(value[key], dict)}


def newest_phases(rows: Iterable[Mapping[str, Any]], split: str) -> dict[str, Phases]:
    """Site -> phase -> newest metrics on ``split``, from rows in order of round."""
    table: dict[str, dict[str, Metrics]] = {}
    for row in rows:
        if split_of(row) == split:
            table.setdefault(str(row["site"]), {})[str(row.get("phase"))] = row
    return dict(table)
