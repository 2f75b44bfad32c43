"""Run folders as the server writes them, with plausible numbers from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.config import RunConfig, Scalar

HOSPITALS = {"Cleveland": 61, "Hungary": 59, "Switzerland": 25, "VA Long Beach": 40}
PAYLOAD = 301_072  # bytes of a rank-8 MiniLM adapter with its head, fp32
VERSIONS = {"fedapp": "0.1.0", "flwr": "1.42.0", "numpy": "2.4.6", "python": "3.11.2"}


def write_run(
    folder: Path,
    *,
    sites: Mapping[str, int] = HOSPITALS,
    rounds: int = 4,
    finished: bool = True,
    held_out: Sequence[str] = (),
    settings: Mapping[str, Scalar] | None = None,
    seed: int = 0,
) -> Path:
    """Write config.json, metrics.jsonl and, if finished, summary.json; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    flat = {
        "name": folder.name,
        "federation.rounds": rounds,
        "federation.held-out": ",".join(held_out),
    }
    config = RunConfig.from_flat({**flat, **(settings or {})})
    (folder / "config.json").write_text(
        json.dumps(
            {
                "method": config.method,
                "seed": config.seed,
                "digest": config.digest(),
                "settings": config.to_flat(),
                "versions": VERSIONS,
                "sites": {site: _description(size) for site, size in sites.items()},
            },
            indent=2,
        )
    )
    training = {site: size for site, size in sites.items() if site not in held_out}
    skill = {site: chance.uniform(0.76, 0.92) for site in sites}
    rows: list[dict[str, Any]] = []
    last = rounds if finished else max(1, rounds - 1)
    for round_ in range(1, last + 1):
        rows += _round(round_, training, skill, chance)
    if finished:
        for site, size in training.items():
            rows.append(
                _row(rounds, site, "local-only", "validation", skill[site] - 0.02, size, chance)
            )
            rows += [
                _row(rounds, site, phase, "test", skill[site] - gap, size, chance)
                for phase, gap in (("local-only", 0.02), ("received", 0.05), ("personal", 0.0))
            ]
        _write_summary(folder, config, rows, {s: sites[s] for s in held_out}, chance)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _description(size: int) -> dict[str, Any]:
    return {
        "base_model": "sentence-transformers/all-MiniLM-L6-v2", "label_map": ["0", "1"],
        "examples": {"train": 3 * size, "validation": size, "test": size}, "device": "cpu",
        "notes": ["2 duplicate records were dropped"] if size == 61 else [],
    }  # fmt: skip


def _round(
    round_: int, sites: Mapping[str, int], skill: Mapping[str, float], chance: random.Random
) -> list[dict[str, Any]]:
    rows = []
    for site, size in sites.items():
        for phase, lag in (("received", 1.0), ("personal", 0.1)):
            level = skill[site] - 0.06 * (phase == "received") - 0.35 * lag * 0.35 ** (round_ - 1)
            rows.append(_row(round_, site, phase, "validation", level, size, chance))
    personal = [row for row in rows if row["phase"] == "personal"]
    progress = 1 - 0.6**round_
    federation = {
        "round": round_, "site": None, "phase": "federation",
        "accuracy": sum(row["accuracy"] for row in personal) / len(personal),
        "loss": sum(row["loss"] for row in personal) / len(personal),
        "examples": sum(row["examples"] for row in personal),
        "bytes_up": PAYLOAD * len(sites), "bytes_down": PAYLOAD * len(sites),
        "seconds": len(sites) * chance.uniform(9.1, 10.2),
        "training_seconds": len(sites) * chance.uniform(16.0, 17.2),
        "replies": len(sites), "retries": 0, "missing": {},
        "cancellation": 0.58 + 0.35 * progress, "cancellation_increment": 0.58 - 0.1 * progress,
        "client_global_cosine": 0.55 + 0.4 * progress, "pairwise_cosine": 0.28 + 0.55 * progress,
        "merge_error": 0.21 - 0.15 * progress,
    }  # fmt: skip
    if round_ > 1:  # undefined while B is zero
        federation |= {
            "overlap": 0.962 + 0.02 * progress,
            "overlap_squared": 0.925 + 0.04 * progress,
        }
    return [*rows, federation]


def _row(
    round_: int, site: str, phase: str, split: str, level: float, size: int, chance: random.Random
) -> dict[str, Any]:
    share = min(1.0, max(0.0, level + chance.gauss(0, 0.02)))
    accuracy = round(share * size) / size
    return {
        "round": round_, "site": site, "phase": phase, "split": split,
        "accuracy": accuracy, "loss": 1.1 - 0.8 * accuracy, "auc": min(1.0, accuracy + 0.06),
        "f1": max(0.0, accuracy - 0.02), "examples": size,
        "bytes_up": PAYLOAD, "bytes_down": PAYLOAD, "seconds": 18.0,
        **({"train_loss": 1.05 - 0.8 * accuracy, "steps": 12.0} if phase != "received" else {}),
    }  # fmt: skip


def _write_summary(
    folder: Path, config: RunConfig, rows: list[dict[str, Any]], held_out: Mapping[str, int],
    chance: random.Random,
) -> None:  # fmt: skip
    keys = ("accuracy", "loss", "auc", "f1", "examples")
    sites: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["site"] is not None and row["split"] == "test":
            sites.setdefault(row["site"], {})[row["phase"]] = {key: row[key] for key in keys}
    mean, worst = {}, {}
    for phase in ("local-only", "received", "personal"):
        table = {site: phases[phase] for site, phases in sites.items()}
        mean[phase] = {
            key: sum(m[key] for m in table.values()) / len(table)
            for key in keys
            if key != "examples"
        }
        site = min(table, key=lambda s: (table[s]["accuracy"], s))
        worst[phase] = {"site": site, **table[site]}
    out = {
        site: {
            "received": _row(config.federation.rounds, site, "received", "test", 0.78, n, chance)
        }
        for site, n in held_out.items()
    }
    federation = [row for row in rows if row["site"] is None]
    summary = {
        "method": config.method, "seed": config.seed, "name": folder.name, "status": "completed",
        "rounds": config.federation.rounds, "sites": sites, "mean": mean, "worst": worst,
        "held_out": out, "wall_seconds": sum(row["seconds"] for row in federation) + 21.0,
        "training_seconds": sum(row["training_seconds"] for row in federation),
        "bytes_up": sum(row["bytes_up"] for row in federation),
        "bytes_down": sum(row["bytes_down"] for row in federation),
        "adapter_digest": "5f1c" * 16, "versions": VERSIONS,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
