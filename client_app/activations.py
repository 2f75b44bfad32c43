"""What the adapted layers see: the second moments of their inputs on a site's own records.

Collected by forward hooks on the current model. Layers that are fed with one tensor (query, key
and value; gate and up) share one collection: they are found by the tensor, not by their names.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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


Batch = Mapping[str, Tensor]
Watch = Callable[[Batch], AbstractContextManager[None]]
"""What is entered around the forward pass of every batch of an evaluation."""


class Sample:
    """A seeded choice of a site's tokens: of an evaluation's records, then of its training records.

    An evaluation runs the model over its records anyway; to look at what the layers see costs next
    to nothing then. Only if its records have too few tokens, training records are run besides.

    Parameters
    ----------
    resident : ResidentModel
        Loaded with the model that is to be looked at.
    evaluated : sequence of mapping
        The task's prepared records of the evaluation; may be empty.
    training : sequence of mapping
        Those for what is missing then.
    config : RunConfig
        ``train.eval_batch_size`` and ``train.precision``.
    tokens : int
        Tokens to count, exactly, if there are as many. Padding is never among them.
    seed : int
        Of the choice.
    complete : callable, optional
        Given every distinct input as soon as all its tokens are counted, while the layers behind
        it are still to come; see `LayerInput.tokens` for one that more are counted of thereafter.
    """

    def __init__(
        self,
        resident: ResidentModel,
        evaluated: Items,
        training: Items,
        config: RunConfig,
        *,
        tokens: int,
        seed: int,
        complete: Callable[[LayerInput], object] | None = None,
    ) -> None:
        self._resident, self._config = resident, config
        rng = np.random.default_rng(seed)
        # The batches in which `client_app.evaluation` goes through them.
        self._seen = self._choose(evaluated, config.train.eval_batch_size, tokens, rng)
        missing = tokens - self._seen.count
        drawn = _draw(training, missing, rng) if missing > 0 else []
        # Small batches of like lengths: padding would be most of a batch of all.
        size = min(BATCH, config.train.eval_batch_size)
        self._more = self._choose(drawn, size, missing, rng)
        self._items = drawn
        self._hooks = _Hooks(self._seen.count + self._more.count, complete)
        self._passed = 0

    @contextmanager
    def watch(self, batch: Batch) -> Iterator[None]:
        """Look at the forward pass of the evaluation's next batch, see `Watch`."""
        mask = self._seen.masks[self._passed]
        self._passed += 1
        with self._hooks.on(self._resident.parameters.layers, mask):
            yield

    def inputs(self) -> list[LayerInput]:
        """Run what is missing and return every distinct input of the adapted layers.

        Raises
        ------
        ConfigError
            If a layer sees something other than one row a token or a record.
        """
        if self._passed != len(self._seen.masks):
            raise RuntimeError(f"{self._passed} of {len(self._seen.masks)} batches were evaluated")
        self._run_more()
        return self._hooks.inputs()

    def _choose(self, items: Items, size: int, tokens: int, rng: np.random.Generator) -> _Chosen:
        dealt = ordered_batches(items, size) if items else []
        collate = self._resident.task.collate
        masks = [_real(collate([items[i] for i in indices])).flatten() for indices in dealt]
        return _Chosen(dealt, _choose(masks, tokens, rng))

    def _run_more(self) -> None:
        model, task, device = self._resident.model, self._resident.task, self._resident.device
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode(), autocast(self._config.train, device):
                for indices, mask in zip(self._more.batches, self._more.masks, strict=True):
                    batch = task.collate([self._items[i] for i in indices])
                    batch = {name: value.to(device) for name, value in batch.items()}
                    with self._hooks.on(self._resident.parameters.layers, mask):
                        task.loss(model, batch)
        finally:
            model.train(was_training)


def collect_inputs(
    resident: ResidentModel, items: Items, config: RunConfig, *, tokens: int, seed: int
) -> list[LayerInput]:
    """Return every distinct input on some of the records, without an evaluation, see `Sample`."""
    return Sample(resident, [], items, config, tokens=tokens, seed=seed).inputs()


@dataclass(frozen=True)
class _Chosen:
    """Batches, by indices of their records, and which of each one's positions count."""

    batches: list[list[int]]
    masks: list[Tensor]

    @property
    def count(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks)


class _Hooks:
    """Counts the rows that every layer is given."""

    def __init__(self, most: int, complete: Callable[[LayerInput], object] | None) -> None:
        self._most, self._complete = most, complete
        self._found: dict[str, LayerInput] = {}  # by the layer that saw it first
        self._shared: dict[str, str] = {}  # layer -> layer that saw its input first
        self._seen: list[tuple[weakref.ref[Tensor], str]] = []
        self._mask = torch.empty(0, dtype=torch.bool)
        self._passed: dict[str, int] = {}  # rows of the mask that a layer has been given

    @contextmanager
    def on(self, layers: Mapping[str, Any], mask: Tensor) -> Iterator[None]:
        """Hook into the layers for one batch in which these of all positions count.

        The task may run the model on one part of the batch after the other, in their order.
        """
        self._mask, self._seen, self._passed = mask, [], dict.fromkeys(layers, 0)
        handles = [
            layer.register_forward_pre_hook(self._hook(name)) for name, layer in layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for name in layers:
            if self._passed[self._shared.get(name, name)] != len(mask):
                raise self._odd(name)

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
        if self._complete is not None and found.tokens == self._most:
            self._complete(found)

    def _rows(self, name: str, h_pn: Tensor) -> Tensor:
        start = self._passed[name] % max(1, len(self._mask))  # a layer may stand at several depths
        stop = self._passed[name] = start + len(h_pn)
        if stop > len(self._mask):
            raise self._odd(name)
        return h_pn[self._mask[start:stop].to(h_pn.device)]

    def _odd(self, name: str) -> ConfigError:
        rows = self._passed[self._shared.get(name, name)]
        return ConfigError(
            f"layer '{name}' sees {rows} rows of a batch with {len(self._mask)} tokens, so "
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
    """Which positions of a batch are tokens and not padding; an image is one row."""
    if "attention_mask" in batch:
        return batch["attention_mask"].bool()
    if "segments" in batch:
        return batch["segments"] >= 0
    return torch.ones(len(batch["labels"]), dtype=torch.bool)
