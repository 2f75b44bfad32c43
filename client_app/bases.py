"""A site's directions of no use: what it tells before a round of `dysco`, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_app.activations import LayerInput
from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.config_dysco import DyscoSection
from fedapp.errors import TrainingError
from fedapp.seeds import derive_seed
from fedapp.subspaces import (
    Double,
    Subspace,
    insensitive_basis,
    insensitive_subspace,
    insensitive_subspace_of_tokens,
)


@dataclass(frozen=True)
class SiteBases:
    """What is sent, and what is reported beside it.

    Attributes
    ----------
    bases : Adapter
        One tensor a pair, by its name: q x in_features, orthonormal rows, fp32.
    numbers : dict of str to float
        ``basis_tokens``: tokens that were looked at; ``insensitive_share``: dimension of the
        insensitive subspace over the number of features, mean over the distinct inputs.
    """

    bases: Adapter
    numbers: dict[str, float]


def activation_seed(config: RunConfig, site: str, round: int) -> int:
    """Return the seed of the choice of tokens that a site looks at in a round."""
    return derive_seed(config.seed, "activations", site, round)


class Decompositions:
    """Decomposes what one layer sees while the model computes the layers behind it.

    Made by `decomposing`.
    """

    def __init__(self, config: RunConfig, thread: Executor) -> None:
        self._settings, self._rows, self._thread = config.dysco, _rows(config), thread
        self._started: dict[int, tuple[int, Future[Subspace]]] = {}

    def start(self, found: LayerInput) -> None:
        """Take an input that is complete, see `client_app.activations.Sample`."""
        if self._settings.basis == "rotated":
            future = self._thread.submit(_subspace, found, self._rows, self._settings)
            self._started[id(found)] = found.tokens, future

    def subspace(self, found: LayerInput) -> Subspace:
        """Return an input's insensitive subspace, computed now unless it was started."""
        tokens, future = self._started.get(id(found), (0, None))
        if future is None or tokens != found.tokens:  # a layer that stands at several depths
            return _subspace(found, self._rows, self._settings)
        return future.result()


@contextmanager
def decomposing(config: RunConfig) -> Iterator[Decompositions]:
    """Decompose in a thread of its own until the end of the block.

    An eigen-decomposition holds no lock of Python's.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bases")
    try:
        yield Decompositions(config, thread)
    finally:
        thread.shutdown(cancel_futures=True)


def site_bases(
    inputs: Sequence[LayerInput],
    config: RunConfig,
    *,
    site: str,
    round: int,
    decompositions: Decompositions | None = None,
) -> SiteBases:
    """Return directions that a model's activations do not use.

    One decomposition serves all layers with one input. Inside its subspace every layer has a basis
    of its own, drawn from the run's seed, the round, the site and the layer. The activations, their
    Grams and the subspaces stay here.

    Parameters
    ----------
    inputs : sequence of LayerInput
        What the adapted layers see in the round's model, what was learned before folded into it.
    config : RunConfig
    site : str
    round : int
    decompositions : Decompositions, optional
        What was started before, with the same settings.

    Raises
    ------
    TrainingError
        If a layer sees NaN or Inf.
    """
    settings, rows = config.dysco, _rows(config)
    bases: dict[str, Any] = {}
    shares = []
    for found in inputs:
        subspace = None
        if settings.basis == "rotated" and decompositions is not None:
            subspace = decompositions.subspace(found)
        elif settings.basis == "rotated":
            subspace = _subspace(found, rows, settings)
        if subspace is not None:
            shares.append(subspace.dimension / subspace.v_nk.shape[0])
        for layer in found.layers:
            of_layer = derive_seed(config.seed, "basis", site, round, layer)
            basis = _bottom(found, rows) if subspace is None else _draw(subspace, rows, of_layer)
            bases[layer] = basis.astype(np.float32)
    numbers = {"basis_tokens": float(max(found.tokens for found in inputs))}
    if shares:
        numbers["insensitive_share"] = float(np.mean(shares))
    return SiteBases(Adapter({}, bases), numbers)


def _rows(config: RunConfig) -> int:
    return config.dysco.rows or config.lora.rank


def _subspace(found: LayerInput, rows: int, settings: DyscoSection) -> Subspace:
    if found.gram_nn is not None:
        gram_nn = _finite(found, found.gram_nn)
        return insensitive_subspace(gram_nn, min(rows, len(gram_nn)), settings.energy)
    assert found.h_tn is not None
    h_tn = _finite(found, found.h_tn)
    return insensitive_subspace_of_tokens(h_tn, min(rows, h_tn.shape[1]), settings.energy)


def _draw(subspace: Subspace, rows: int, seed: int) -> Double:
    return subspace.draw(min(rows, subspace.v_nk.shape[0]), seed)


def _bottom(found: LayerInput, rows: int) -> Double:
    gram = found.gram_nn
    if gram is None:
        assert found.h_tn is not None
        gram = found.h_tn.T @ found.h_tn
    gram_nn = _finite(found, gram)
    return insensitive_basis(gram_nn, min(rows, len(gram_nn)), 0, 0.0, basis="eigh")


def _finite(found: LayerInput, counted: Any) -> Any:
    array = counted.cpu().numpy()
    if not np.isfinite(array).all():
        raise TrainingError(
            f"what layer '{found.layers[0]}' sees must be finite, got NaN or Inf; lower "
            "train.learning-rate or use train.precision fp32"
        )
    return array
