"""What a model makes of a site's validation records: features and outputs, or its loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_app.batching import ordered_batches
from client_app.fast_linear import fast_linear
from client_app.runtime import autocast, full_precision
from client_app.tasks.base import Batch, ComparableTask
from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.ntk_rows import select_positions
from fedapp.peer_rules.base import View
from fedapp.seeds import derive_seed

if TYPE_CHECKING:
    from client_app.models import ResidentModel

Items = Sequence[Mapping[str, Any]]
_NOTHING = View(np.zeros((0, 1)), np.zeros((0, 1)), np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that are looked at: positions of the last layer's inputs, batch by batch.

    Attributes
    ----------
    shapes : list of tuple of int
        Of the batches' inputs, without their features.
    places : list of tuple of Tensor
        Indices along these axes.
    labels_n : ndarray of int64, shape (n,)
    """

    shapes: list[tuple[int, ...]]
    places: list[tuple[Tensor, ...]]
    labels_n: NDArray[np.int64]


class Viewer:
    """Looks at models through the same records, in the same order, one forward pass each.

    Parameters
    ----------
    resident : ResidentModel
        Models are loaded into it; what it held before is gone.
    items : sequence of mapping
        The task's prepared validation records; ``p2p.records`` of them, a seeded choice, are used.
    config : RunConfig
    site : str

    Attributes
    ----------
    items : list of mapping
        Those that are used.

    Raises
    ------
    ConfigError
        If the task does not say what its last layer is.
    """

    def __init__(self, resident: ResidentModel, items: Items, config: RunConfig, site: str) -> None:
        if not isinstance(resident.task, ComparableTask):
            raise ConfigError(
                f"two models of model.task {config.model.task} cannot be compared; choose a method "
                "with a coordinator"
            )
        self._task: ComparableTask = resident.task
        self._resident, self._config = resident, config
        seed = derive_seed(config.seed, "view", site)
        chosen = select_positions(np.ones(len(items), bool), config.p2p.records, seed)
        self.items = [items[index] for index in chosen]
        self._rows_seed = derive_seed(seed, "rows")
        self._layer = self._task.last_layer(resident.model)
        self._rows: _Rows | None = None

    def __call__(self, model: Adapter) -> View:
        """Load a model and look at it."""
        seen: list[Tensor] = []
        with self.evaluating(model):
            for batch in self.batches:
                with _inputs(self._layer) as inputs:
                    self._resident.task.output(self._resident.model, batch)
                seen.append(self._with_features_last(inputs))
            return self._view(seen) if seen else _NOTHING

    def loss(self, model: Adapter) -> float:
        """Load a model and return its loss; NaN without records."""
        scores = self._resident.task.scores(self._resident.device)
        with self.evaluating(model):
            for batch in self.batches:
                scores.update(self._resident.task.output(self._resident.model, batch), batch)
        return float(scores.compute()["loss"]) if self.batches else math.nan

    @contextmanager
    def evaluating(self, model: Adapter) -> Iterator[None]:
        """Load a model and have it as it is looked at."""
        resident = self._resident
        resident.parameters.load(model)
        was_training = resident.model.training
        resident.model.eval()
        try:
            with (
                torch.inference_mode(),
                autocast(self._config.train, resident.device),
                fast_linear(resident.model, resident.device),
            ):
                yield
        finally:
            resident.model.train(was_training)

    @cached_property
    def batches(self) -> list[Batch]:
        """The records as a model takes them, on its device: made once for all models."""
        collate, size = self._resident.task.collate, self._config.train.eval_batch_size
        batches = (
            collate([self.items[i] for i in indices])
            for indices in ordered_batches(self.items, size)
        )
        device = self._resident.device
        return [{name: value.to(device) for name, value in batch.items()} for batch in batches]

    def _with_features_last(self, inputs: list[Tensor]) -> Tensor:
        """Return what went into the last layer, (records, ..., D)."""
        if not inputs:
            raise ConfigError(
                f"the last layer of this model is not used for model.task {self._config.model.task}"
            )
        whole = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
        return whole.movedim(1, -1) if _is_map(self._layer, whole) else whole

    def _view(self, seen: list[Tensor]) -> View:
        shapes = [tuple(each.shape[:-1]) for each in seen]
        if self._rows is None or self._rows.shapes != shapes:  # the same of every model, so once
            self._rows = self._choose(shapes)
        chosen = zip(seen, self._rows.places, strict=True)
        rows_nd = torch.cat([each[place] for each, place in chosen]).float()
        with full_precision():
            logits_nc = _outputs(self._layer, rows_nd)
        return View(
            rows_nd.cpu().numpy(),
            logits_nc.float().cpu().numpy(),
            self._rows.labels_n,
            has_bias=getattr(self._layer, "bias", None) is not None,
        )

    def _choose(self, shapes: list[tuple[int, ...]]) -> _Rows:
        """Choose among the positions that count, ``p2p.rows`` of all batches."""
        counted = [
            self._task.counted(batch, shape)
            for batch, shape in zip(self.batches, shapes, strict=True)
        ]
        valid = np.concatenate([mask.cpu().numpy().ravel() for mask, _ in counted])
        labels = np.concatenate([right.cpu().numpy() for _, right in counted]).astype(np.int64)
        positions = select_positions(valid, self._config.p2p.rows, self._rows_seed)
        starts = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
        places = []
        for start, end, shape in zip(starts, starts[1:], shapes, strict=False):
            here = positions[(positions >= start) & (positions < end)] - start
            axes = np.unravel_index(here, shape)
            places.append(tuple(torch.from_numpy(a).to(self._resident.device) for a in axes))
        return _Rows(shapes, places, labels[np.searchsorted(np.flatnonzero(valid), positions)])


@contextmanager
def _inputs(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what goes into a layer; a task may run a batch in parts, in their order."""
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        handle.remove()


def _outputs(layer: nn.Module, rows_nd: Tensor) -> Tensor:
    weight = getattr(layer, "weight", None)
    if weight is not None and weight.ndim == 4:  # a 1 x 1 convolution
        return layer(rows_nd[:, :, None, None])[:, :, 0, 0]  # type: ignore[no-any-return]
    return layer(rows_nd.to(weight.dtype) if weight is not None else rows_nd)  # type: ignore[no-any-return]


def _is_map(layer: nn.Module, values: Tensor) -> bool:
    return isinstance(layer, nn.Conv2d) or values.ndim == 4
