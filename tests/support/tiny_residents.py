"""Resident tiny models and a few records, and their activations by hooks written out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_families import save_family
from torch import Tensor

from client_app.models import ResidentModel, load_resident
from fedapp.config import RunConfig

LABELS = ["no", "yes"]
TEXTS = ["no chest pain", "typical angina , 63 years , male", "x", "high pressure at rest", "fever"]


def tiny_resident(
    folder: Path, family: str, targets: str = "", **flat: Any
) -> tuple[ResidentModel, RunConfig]:
    """A resident model of the family with a rank of 2, and its settings."""
    base, usual = save_family(family, folder / family)
    settings = {
        "model.source": str(base),
        "lora.rank": 2,
        "lora.targets": targets or usual,
        "train.eval-batch-size": 2,
        **flat,
    }
    config = RunConfig.from_flat(settings)
    return load_resident(config, LABELS), config


def items_of(resident: ResidentModel, texts: list[str] = TEXTS) -> list[dict[str, Any]]:
    """Prepared records."""
    return resident.task.prepare([{"text": text, "label": 0} for text in texts])


def by_hand(resident: ResidentModel, items: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows of every layer, one record at a time, so that nothing is padded."""
    rows: dict[str, list[Tensor]] = {name: [] for name in resident.parameters.layers}
    hooks = [
        layer.register_forward_pre_hook(
            lambda module, inputs, name=name: rows[name].append(inputs[0].flatten(0, -2).clone())
        )
        for name, layer in resident.parameters.layers.items()
    ]
    with torch.inference_mode():
        for item in items:
            resident.task.loss(resident.model, resident.task.collate([item]))
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts).double() for name, parts in rows.items()}
