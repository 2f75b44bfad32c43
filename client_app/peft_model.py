"""Put one LoRA adapter and the heads trained in full on a base model, through PEFT."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import Enum
from typing import Any

from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from client_app.sources import ModelSource
from client_app.targets import target_layers
from client_app.tasks.base import Task
from fedapp.config import LoraSection
from fedapp.errors import ConfigError

_MOST_FRESH = 0.1  # share of a base model's numbers that a checkpoint may lack


def add_adapter(
    base: nn.Module, task: Task, lora: LoraSection, source: ModelSource
) -> tuple[nn.Module, dict[str, Any]]:
    """Wrap the base model.

    Returns
    -------
    model : nn.Module
        The PEFT model; it owns ``base``.
    peft_config : dict
        JSON-able content of ``adapter_config.json``.

    Raises
    ------
    ConfigError
        If ``lora.targets`` does not fit, or the checkpoint lacks much of the base model.
    """
    heads = [*task.heads(base), *fresh_modules(base, task.heads(base))]
    layers = target_layers(base, lora.targets, heads)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # PEFT divides it and nothing else
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        modules_to_save=list(heads),
        task_type=task.peft_task_type,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT calls what transformers renames
        model = get_peft_model(base, settings)
    exported: dict[str, Any] = settings.to_dict()  # type: ignore[no-untyped-call]
    exported |= {
        "base_model_name_or_path": source.name,
        "inference_mode": True,
        "modules_to_save": sorted(heads),
    }
    return model, {key: _plain(value) for key, value in sorted(exported.items())}


def fresh_modules(model: nn.Module, heads: Sequence[str]) -> list[str]:
    """Return the modules outside the heads whose weights the checkpoint lacks.

    An example is the pooler of an encoder that was saved without one. Its numbers are random, so
    it must be shared and exported with the heads. transformers marks what it has read.
    """
    marks = {
        name: getattr(parameter, "_is_hf_initialized", False)
        for name, parameter in model.named_parameters()
    }
    quantised = any(not parameter.is_floating_point() for parameter in model.parameters())
    if quantised or not any(marks.values()):
        return []  # nothing is known: packing the weights drops the marks
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    fresh = [
        name
        for name, read in marks.items()
        if not read and not any(name.startswith(f"{head}.") for head in heads)
    ]
    missing = sum(sizes[name] for name in fresh)
    if missing > _MOST_FRESH * sum(sizes.values()):
        raise ConfigError(
            f"the checkpoint lacks {len(fresh)} arrays of the base model, such as '{fresh[0]}'; "
            "its weights do not belong to its config.json"
        )
    return list(dict.fromkeys(name.rpartition(".")[0] for name in fresh))


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
