"""The resident model: one frozen base per process, on which only adapters are swapped."""

from __future__ import annotations

import copy
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from client_app.base_model import load_base
from client_app.device import device_for
from client_app.parameters import AdapterParameters
from client_app.peft_model import add_adapter
from client_app.sources import ModelSource, resolve_model
from client_app.tasks import build_task
from client_app.tasks.base import Task
from client_app.whole_model import whole_model
from fedapp.config import RunConfig

__all__ = [
    "ModelSource",
    "ResidentModel",
    "base_loads",
    "forget_models",
    "load_resident",
    "resolve_model",
]

_MOST_BASES = 2
_MOST_RESIDENTS = 8


@dataclass(frozen=True)
class ResidentModel:
    """A base model with one adapter, shared by every site of this process.

    Attributes
    ----------
    model : nn.Module
        The PEFT model, or the model itself where all of it is trained, in evaluation mode.
    task : Task
    parameters : AdapterParameters
        Load an adapter into it before use: what it holds is what the last user left.
    device : torch.device
    base_digest : str
        SHA-256 over the base model's weights, settings and tokenizer.
    peft_config : dict
        ``adapter_config.json`` of the exported adapter; without one, name and kind of the base.
    source : ModelSource
    """

    model: nn.Module
    task: Task
    parameters: AdapterParameters
    device: torch.device
    base_digest: str
    peft_config: dict[str, Any]
    source: ModelSource


@dataclass
class _Cache:
    """The one explicit cache of this process, least recently used first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    loads: int = 0
    bases: dict[Hashable, nn.Module] = field(default_factory=dict)
    residents: dict[Hashable, tuple[Hashable, ResidentModel]] = field(default_factory=dict)

    def use(self, key: Hashable) -> ResidentModel | None:
        if key not in self.residents:
            return None
        entry = self.residents[key] = self.residents.pop(key)
        self.bases[entry[0]] = self.bases.pop(entry[0])
        return entry[1]

    def keep(self, key: Hashable, base_key: Hashable, resident: ResidentModel) -> None:
        self.residents[key] = (base_key, resident)
        while len(self.residents) > _MOST_RESIDENTS:
            self.residents.pop(next(iter(self.residents)))

    def make_room(self) -> None:
        """Drop what was not used for longest before another base is loaded, to bound memory."""
        while len(self.bases) >= _MOST_BASES:
            dropped = next(iter(self.bases))
            del self.bases[dropped]
            self.residents = {k: v for k, v in self.residents.items() if v[0] != dropped}


_CACHE = _Cache()


def load_resident(config: RunConfig, label_map: Sequence[str]) -> ResidentModel:
    """Return this process's resident model for these settings, loading it at the first call.

    Later calls with the same model, LoRA settings, labels and device return the same object. Other
    LoRA settings on the same base get modules of their own around the same frozen weights.

    Parameters
    ----------
    config : RunConfig
        Its ``model`` and ``lora`` sections and ``train.device`` matter.
    label_map : sequence of str

    Raises
    ------
    ConfigError
        If the model is not found or unusable, or ``lora.targets`` does not fit it.
    DeviceError
        If the device is absent or cannot do what is asked.
    """
    device = device_for(config)
    with _CACHE.lock:
        source = resolve_model(config.model.source)
        base_key = (source, config.model, tuple(label_map), device)
        whole = config.model.trainable == "all"
        key = (base_key, None if whole else config.lora)
        resident = _CACHE.use(key)
        if resident is None:
            task = build_task(config, list(label_map), source)
            if base_key not in _CACHE.bases:
                _CACHE.make_room()
                _CACHE.bases[base_key] = load_base(config, task, source, device)
                _CACHE.loads += 1
            build = _whole if whole else _adapted
            resident = build(config, _CACHE.bases[base_key], task, source, device)
            _CACHE.keep(key, base_key, resident)
    return resident


def base_loads() -> int:
    """Return how many base models this process has loaded so far."""
    return _CACHE.loads


def forget_models() -> None:
    """Empty the cache, so that the memory can be returned."""
    with _CACHE.lock:
        _CACHE.bases.clear()
        _CACHE.residents.clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _adapted(
    config: RunConfig, base: nn.Module, task: Task, source: ModelSource, device: torch.device
) -> ResidentModel:
    base = _share(base)
    model, peft_config = add_adapter(base, task, config.lora, source)
    if config.model.quantization == "none":
        model.to(device)  # packed weights are on their device and must not be moved
    model.eval()
    settings = getattr(base, "config", base)
    parameters = AdapterParameters(model, getattr(settings, "initializer_range", 0.02))
    return ResidentModel(model, task, parameters, device, source.digest, peft_config, source)


def _whole(
    config: RunConfig, base: nn.Module, task: Task, source: ModelSource, device: torch.device
) -> ResidentModel:
    model, parameters, settings = whole_model(base, task, source)
    model.eval()
    return ResidentModel(model, task, parameters, device, source.digest, settings, source)


def _share(base: nn.Module) -> nn.Module:
    """Copy the modules but not the weights: PEFT then changes the copy alone."""
    weights = [*base.parameters(), *base.buffers()]
    return copy.deepcopy(base, {id(weight): weight for weight in weights})
