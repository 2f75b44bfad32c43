"""What a site tells in the handshake."""

from __future__ import annotations

import time
from pathlib import Path

import torch

import fedapp
from client_app.data import SiteData
from client_app.data_digest import data_digest
from client_app.device import describe_device
from client_app.models import ResidentModel
from fedapp.config import RunConfig
from fedapp.default_settings import defaults_digest
from fedapp.exchange import SiteDescription


def describe(
    data: SiteData,
    resident: ResidentModel,
    config: RunConfig,
    threads: int,
    cut: int,
    unused: int = 0,
    keys: Path | None = None,
) -> SiteDescription:
    """Describe a site: identities and counts, no record and no label count.

    Parameters
    ----------
    data : SiteData
    resident : ResidentModel
    config : RunConfig
    threads : int
        CPU threads in use; the last digits of a result depend on them.
    cut : int
        Training texts that ``model.max-length`` cuts.
    unused : int
        Training records that the task left out, because nothing can be learned from them.
    keys : Path, optional
        See `client_app.data_digest.data_digest`.
    """
    initial = resident.parameters.initial(config.seed)
    return SiteDescription(
        site=data.site,
        package_version=fedapp.__version__,
        defaults_digest=defaults_digest(),
        base_model=resident.source.name,
        base_model_digest=resident.base_digest,
        layout_digest=initial.layout_digest(),
        initial_digest=initial.digest(),
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        targets=list(config.lora.targets),
        heads=list(initial.tensors),
        dtype=_dtype(resident, config),
        task=config.model.task,
        label_map=list(data.label_map),
        examples={split: len(records) for split, records in data.splits.items()},
        device=describe_device(resident.device),
        threads=threads,
        torch_version=torch.__version__,
        clock=time.time(),
        peft_config=dict(resident.peft_config),
        notes=[*data.notes, *_cut_note(cut, config.model.max_length), *_unused_note(unused)],
        data_digest=data_digest(data, keys),
    )


def _cut_note(cut: int, longest: int) -> list[str]:
    if not cut:
        return []
    texts = "training text" if cut == 1 else "training texts"
    return [f"{cut} {texts} longer than {longest} tokens {'was' if cut == 1 else 'were'} cut"]


def _unused_note(unused: int) -> list[str]:
    if not unused:
        return []
    records = "training record" if unused == 1 else "training records"
    return [f"{unused} {records} with a response of zero tokens left out"]


def _dtype(resident: ResidentModel, config: RunConfig) -> str:
    """Precision of the base weights and of the arithmetic, which must be equal at every site."""
    if config.model.quantization != "none":
        return f"{config.model.quantization}, {config.train.precision}"
    base = next(p for p in resident.model.parameters() if p.is_floating_point())
    return f"{str(base.dtype).removeprefix('torch.')}, {config.train.precision}"
