"""Merge a run's adapter into its base model: a plain transformers folder without PEFT."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.pytorch_utils import Conv1D

from client_app.base_model import load_base
from client_app.data.schemas import schema_class
from client_app.image_nets import ImageNet, save_net
from client_app.quiet import quiet_transformers
from client_app.sources import ModelSource, resolve_model
from client_app.tasks import build_task
from client_app.tasks.tokenizer import load_tokenizer
from fedapp.adapter import Adapter
from fedapp.atomic_folder import write_folder
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.exported import load_exported
from fedapp.paths import user_path
from fedapp.results import RunFolder

_PROBE = 7919  # a number of labels that no layer has as its width


def merge_into_base(run_folder: Path, target: Path) -> Path:
    """Write the base model with ``scaling * B A`` added to its weights and the trained heads.

    ``AutoModelForSequenceClassification.from_pretrained(target)``, or the class of transformers
    for the run's task, loads the result, `client_app.image_nets.load_net` a network for images.
    Weights that were all trained take the place of the base model's. The folder appears as a whole
    or not at all.

    Parameters
    ----------
    run_folder : Path
        Its ``config.json`` names the base model, its ``adapter/`` holds the adapter.
    target : Path
        A folder that does not exist or is empty.

    Returns
    -------
    Path
        The absolute path of ``target``.

    Raises
    ------
    ConfigError
        If the run has no adapter, the base model is not found or is another one, or ``target``
        holds something.
    """
    run, target = RunFolder.open(run_folder), user_path(target).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} holds something already; name a new folder")
    content = run.read_config()
    # An adapter that was trained on a 4-bit base is added to the full weights.
    neutral = {"model.quantization": "none", "train.device": "cpu", "train.precision": "fp32"}
    config = RunConfig.from_flat({**content["settings"], **neutral})
    adapter = load_exported(config, run.adapter)
    source = resolve_model(config.model.source)
    site: dict[str, Any] = next(iter(content["sites"].values()), {})  # what all sites agreed on
    _check_base(site.get("base_model_digest"), source)
    labels: list[str] = []
    schema = schema_class(config.model.task)
    if schema.labelled or schema.names_classes:
        told = site.get("label_map")
        named = list(map(str, told)) if isinstance(told, list) else config.data.labels
        labels = _labels(named or config.data.labels, source, adapter)
    task = build_task(config, labels, source)
    model = load_base(config, task, source, torch.device("cpu"))
    merge(model, adapter)

    def fill(folder: Path) -> None:
        _save(model, source, folder, labels)
        card = run.adapter / "README.md"
        if card.is_file():
            shutil.copyfile(card, folder / "README.md")

    write_folder(target, fill)
    return target


def _save(model: nn.Module, source: ModelSource, folder: Path, labels: Sequence[str]) -> None:
    if isinstance(model, ImageNet):
        save_net(model, folder, labels)
        return
    with quiet_transformers():
        model.save_pretrained(folder)  # type: ignore[operator]
        load_tokenizer(source).save_pretrained(folder)


def merge(model: nn.Module, adapter: Adapter) -> None:
    """Add every pair to its layer's weight and put the full tensors in place.

    The sum is computed in fp64 and rounded once.

    Raises
    ------
    ConfigError
        If a pair or tensor does not fit the model; the model may then be half merged.
    """
    parameters = dict(model.named_parameters())
    for name, pair in adapter.pairs.items():
        weight = _parameter(parameters, f"{name}.weight")
        product = pair.scaling * (pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64))
        if isinstance(model.get_submodule(name), Conv1D):  # keeps its weight transposed
            product = product.T
        _check_shape(f"{name}.weight", product.shape, weight)
        weight.data.copy_(weight.data.double() + torch.from_numpy(product))
    for name, tensor in adapter.tensors.items():
        parameter = _parameter(parameters, name)
        _check_shape(name, tensor.shape, parameter)
        parameter.data.copy_(torch.from_numpy(tensor.astype(np.float32)))


def _parameter(parameters: Mapping[str, nn.Parameter], name: str) -> nn.Parameter:
    if name not in parameters:
        raise ConfigError(f"the adapter changes '{name}', which the base model does not have")
    return parameters[name]


def _check_shape(name: str, shape: tuple[int, ...], parameter: nn.Parameter) -> None:
    if shape != tuple(parameter.shape):
        raise ConfigError(
            f"the adapter's '{name}' has shape {shape}, the base model's {tuple(parameter.shape)}"
        )


def _check_base(expected: str | None, source: ModelSource) -> None:
    if expected is not None and expected != source.digest:
        raise ConfigError(
            f"the base model in {source.path} has digest {source.digest[:12]}, but the run was "
            f"made with {expected[:12]}; provide the same model files"
        )


def _labels(labels: Sequence[str], source: ModelSource, adapter: Adapter) -> list[str]:
    """Return the labels' names as the run recorded them, or LABEL_0, ... if it did not."""
    count = _label_count(source, adapter)
    if len(labels) not in (0, count):
        raise ConfigError(f"the run has {len(labels)} labels, but its adapter's head has {count}")
    return list(labels) or [f"LABEL_{number}" for number in range(count)]


def _label_count(source: ModelSource, adapter: Adapter) -> int:
    """Find the output layer in a weightless model, then its width in the adapter."""
    if "head.bias" in adapter.tensors:  # a network for images
        return len(adapter.tensors["head.bias"])
    settings = AutoConfig.from_pretrained(
        source.path, num_labels=_PROBE, local_files_only=True, trust_remote_code=False
    )
    with torch.device("meta"), quiet_transformers():
        model = AutoModelForSequenceClassification.from_config(settings)  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if parameter.shape[0] == _PROBE and name in adapter.tensors:
            return int(adapter.tensors[name].shape[0])
    raise ConfigError("the adapter holds no classification head")
