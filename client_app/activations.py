"""What the adapted layers see: the second moments of their inputs on a site's own records.

Collected by forward hooks on the current model. Layers that are fed with one tensor (query, key
and value; gate and up) share one collection: they are found by the tensor, not by their names.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_app.batching import ordered_batches
from client_app.runtime import autocast, full_precision
from fedapp.config import RunConfig
from fedapp.errors import ConfigError

if TYPE_CHECKING:
    from client_app.models import ResidentModel

Items = Sequence[Mapping[str, Any]]

BATCH = 8
"""Most records of a forward pass."""


@dataclass
class LayerInput:
    """One distinct input of adapted layers.

    Attributes
    ----------
    layers : list of str
        Names of the pairs that see it, the first to see it first.
    tokens : int
        Rows that were counted.
    gram_nn : Tensor, shape (n, n), or None
        Sum of ``h h^T`` over the tokens in fp32, if there are at least as many tokens as features.
    h_tn : Tensor, shape (tokens, n), or None
        The rows themselves otherwise, in fp32.
    """

    layers: list[str]
    tokens: int = 0
    gram_nn: Tensor | None = None
    h_tn: Tensor | None = None

    def add(self, rows_tn: Tensor, most: int) -> None:
        """Count more rows; ``most`` of them are expected in all."""
        self.tokens += len(rows_tn)
        if rows_tn.shape[1] <= most:
            square_nn = rows_tn.T @ rows_tn
            self.gram_nn = square_nn if self.gram_nn is None else self.gram_nn + square_nn
        else:
            self.h_tn = rows_tn if self.h_tn is None else torch.cat([self.h_tn, rows_tn])

    @property
    def features(self) -> int:
        """Numbers of a row."""
        return int(self._counted.shape[1])

    @property
    def _counted(self) -> Tensor:
        counted = self.gram_nn if self.h_tn is None else self.h_tn
        if counted is None:
            raise ValueError(f"no row of layer '{self.layers[0]}' was counted")
        return counted

    def energy(self, left_qn: Tensor) -> float:
        """Return ``sum_t ||L h_t||^2`` of a matrix L."""
        counted = self._counted.double()
        left_qn = left_qn.to(counted)
        if self.gram_nn is None:
            return float((counted @ left_qn.T).square().sum())
        return float(((left_qn @ counted) * left_qn).sum())


def collect_inputs(
    resident: ResidentModel, items: Items, config: RunConfig, *, tokens: int, seed: int
) -> list[LayerInput]:
    """Run the live model over some records and return every distinct input of its pairs.

    Parameters
    ----------
    resident : ResidentModel
        Loaded with the model that is to be looked at.
    items : sequence of mapping
        The task's prepared records.
    config : RunConfig
        ``train.eval_batch_size`` and ``train.precision``.
    tokens : int
        Tokens to count: records are drawn until they have as many, and of theirs a random choice
        of exactly so many. Padding is never among them.
    seed : int
        Of the draw.

    Raises
    ------
    ConfigError
        If a layer sees something other than one row a token or a record.
    """
    rng = np.random.default_rng(seed)
    drawn = _draw(items, tokens, rng)
    # Small batches of like lengths: padding would be most of a batch of all.
    batches = [
        resident.task.collate([drawn[i] for i in indices])
        for indices in ordered_batches(drawn, min(BATCH, config.train.eval_batch_size))
    ]
    masks = [_real(batch).flatten() for batch in batches]
    chosen = _choose(masks, tokens, rng)
    hooked = _Hooks(min(tokens, sum(int(mask.sum()) for mask in masks)))
    model, device = resident.model, resident.device
    was_training = model.training
    model.eval()
    try:
        with (
            torch.inference_mode(),
            hooked.on(resident.parameters.layers),
            autocast(config.train, device),
        ):
            for batch, mask in zip(batches, chosen, strict=True):
                batch = {name: value.to(device) for name, value in batch.items()}
                hooked.begin(mask.to(device))
                resident.task.loss(model, batch)
    finally:
        model.train(was_training)
    return hooked.inputs()


class _Hooks:
    """Counts the rows that every layer is given."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[str, LayerInput] = {}  # by the layer that saw it first
        self._shared: dict[str, str] = {}  # layer -> layer that saw its input first
        self._seen: list[tuple[weakref.ref[Tensor], str]] = []
        self._mask = torch.empty(0, dtype=torch.bool)

    @contextmanager
    def on(self, layers: Mapping[str, Any]) -> Iterator[None]:
        """Hook into the layers for a while."""
        handles = [
            layer.register_forward_pre_hook(self._hook(name)) for name, layer in layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def begin(self, mask: Tensor) -> None:
        """Begin a forward pass in which these of all positions count."""
        self._mask, self._seen = mask, []

    def inputs(self) -> list[LayerInput]:
        """Return what was found, with its layers."""
        for layer, first in self._shared.items():
            if layer != first:
                self._found[first].layers.append(layer)
        return list(self._found.values())

    def _hook(self, name: str) -> Any:
        def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._look(name, inputs[0])

        return look

    def _look(self, name: str, h: Tensor) -> None:
        # A reference that does not keep the tensor alive: another one may get its place, not its
        # identity.
        first = next((layer for seen, layer in self._seen if seen() is h), name)
        if self._shared.setdefault(name, first) != first:
            raise ConfigError(
                f"layer '{name}' shares its input with '{first}' in one pass and not in another; "
                "name other layers in lora.targets"
            )
        if first != name:
            return
        self._seen.append((weakref.ref(h), name))
        with full_precision():
            rows_tn = self._rows(name, h.flatten(0, -2)).float()
            found = self._found.setdefault(name, LayerInput([name]))
            found.add(rows_tn, self._most)

    def _rows(self, name: str, h_pn: Tensor) -> Tensor:
        if len(h_pn) == len(self._mask):
            return h_pn[self._mask]
        raise ConfigError(
            f"layer '{name}' sees {len(h_pn)} rows of a batch with {len(self._mask)} tokens, so "
            "that padding cannot be told; name other layers in lora.targets"
        )


def _draw(items: Items, tokens: int, rng: np.random.Generator) -> list[Mapping[str, Any]]:
    """Draw records until they have enough tokens; all if there are not so many."""
    order = rng.permutation(len(items))
    lengths = np.cumsum([items[i]["length"] for i in order])
    # One record more: of a language model's sequence the last token is only predicted.
    count = min(len(items), int(np.searchsorted(lengths, tokens)) + 2)
    return [items[i] for i in order[:count]]


def _choose(masks: Sequence[Tensor], tokens: int, rng: np.random.Generator) -> list[Tensor]:
    """Return the masks with at most ``tokens`` positions, drawn among all."""
    counts = [int(mask.sum()) for mask in masks]
    kept: NDArray[np.bool_] = np.ones(sum(counts), dtype=bool)
    if len(kept) > tokens:
        kept[rng.permutation(len(kept))[tokens:]] = False
    chosen, start = [], 0
    for mask, count in zip(masks, counts, strict=True):
        some = mask.clone()
        some[mask] = torch.from_numpy(kept[start : start + count])
        chosen.append(some)
        start += count
    return chosen


def _real(batch: Mapping[str, Tensor]) -> Tensor:
    """Which positions of a batch are tokens and not padding."""
    if "attention_mask" in batch:
        return batch["attention_mask"].bool()
    return batch["segments"] >= 0
