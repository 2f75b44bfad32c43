"""Load the frozen base model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import BitsAndBytesConfig

from client_app.quiet import quiet_transformers
from client_app.running_statistics import refuse_running_statistics
from client_app.sources import ModelSource, short_name
from client_app.tasks.base import Task
from fedapp.config import RunConfig
from fedapp.errors import ConfigError

# Heads stay in fp32 when the base is quantised; their names cannot be asked before loading.
_HEADS = [
    "classifier",
    "score",
    "classification_head",
    "pre_classifier",
    "pooler",
    "qa_outputs",
    "sequence_summary",
    "logits_proj",
    "lm_head",
]


def load_base(
    config: RunConfig, task: Task, source: ModelSource, device: torch.device
) -> nn.Module:
    """Load the weights in fp32 (or 4-bit) and freeze them.

    Only safetensors are read, no code of the model folder is run, and nothing is downloaded.

    Raises
    ------
    ConfigError
        If the folder holds no usable model, or one with batch normalisation, or 4-bit is asked for
        without bitsandbytes.
    """
    options: dict[str, Any] = {
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": False,
        "dtype": torch.float32,
    }
    if config.model.quantization == "4bit":
        options |= _four_bit(device)
    try:
        with quiet_transformers():
            model = task.load_base_model(source.path, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        first = first.replace(source.path, Path(source.path).name)
        raise ConfigError(
            f"model.source {short_name(source.name)} cannot be loaded for {config.model.task}: "
            f"{first}"
        ) from error
    refuse_running_statistics(model, source)
    model.requires_grad_(False)
    return model if config.model.quantization == "4bit" else model.to(device)


def _four_bit(device: torch.device) -> dict[str, Any]:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "model.quantization is '4bit' but bitsandbytes is not installed; "
            "run `pip install 'fedapp[cuda]'`, or set model.quantization to none"
        )
    return {
        "quantization_config": BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            llm_int8_skip_modules=_HEADS,
        ),
        "device_map": {"": device},
    }
