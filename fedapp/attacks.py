"""What a faulty site sends instead of its model: the attacks that a run can rehearse (numpy, pure).

Every function takes models and returns the model to send; the honest one is left as it is. Nothing
here is called on the path of an honest site. Of a LoRA pair the model is its product ``s B A``:
what multiplies a model by a number multiplies B alone, since -B times -A would be no attack. Noise
is on the numbers that travel, that is on A, B and tensors.

References
----------
ALIE: Baruch, Baruch and Goldberg, A little is enough, 2019. IPM: Xie, Koyejo and Gupta, Fall of
empires, 2020. The noise and the sign flip are those of LIGHTYEAR (arXiv 2508.05224, 2608.12108).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.mixing import combine
from fedapp.seeds import derive_seed

# ---- one model alone --------------------------------------------------------------------------


def additive_noise(model: Adapter, std: float, seed: int) -> Adapter:
    """Return ``x + std N(0, 1)`` for every number x that travels."""
    return model.map(lambda name, x: _float32(x + std * _normal(x, seed, name)))


def multiplicative_noise(model: Adapter, share: float, seed: int) -> Adapter:
    """Return ``x (1 + share N(0, 1))``; the released code uses shares of 0.015 and 1.205."""
    return model.map(lambda name, x: _float32(x * (1 + share * _normal(x, seed, name))))


def scale(model: Adapter, factor: float) -> Adapter:
    """Return ``factor * theta``: B and tensors times the factor, A as it is."""
    return Adapter(
        {
            name: LoraPair(_float32(pair.b_mr * np.float64(factor)), pair.a_rn, pair.scaling)
            for name, pair in model.pairs.items()
        },
        {name: _float32(x * np.float64(factor)) for name, x in model.tensors.items()},
    )


def flip_sign(model: Adapter) -> Adapter:
    """Return ``-theta``."""
    return scale(model, -1.0)


def random_weights(model: Adapter, seed: int) -> Adapter:
    """Return normal numbers with the root mean square of each array: sizes as of a sound model.

    An array of zeros stays zero.
    """
    return model.map(
        lambda name, x: _float32(
            math.sqrt(np.mean(np.square(x, dtype=np.float64))) * _normal(x, seed, name)
            if x.size
            else x
        )
    )


def flip_head(model: Adapter, head: Collection[str]) -> Adapter:
    """Return the model with the named tensors times -1, the features untouched."""
    _check_names(model, head)
    return _with_tensors(model, {name: -model.tensors[name] for name in head})


def permute_head(model: Adapter, head: Collection[str], seed: int) -> Adapter:
    """Return the model with the classes of its head permuted, so that none keeps its place.

    Parameters
    ----------
    model : Adapter
    head : collection of str
        Tensors with one class a row, such as the weight (C, D) and the bias (C,) of a last layer.
    seed : int
    """
    _check_names(model, head)
    classes = {len(model.tensors[name]) for name in head}
    if len(classes) != 1:
        raise ValueError(f"the head's tensors must have one class a row each, got {classes} rows")
    order = derangement(classes.pop(), seed)
    return _with_tensors(model, {name: model.tensors[name][order] for name in head})


@dataclass(frozen=True)
class HiddenLayer:
    """Tensors between which a layer's neurons can be renamed.

    Attributes
    ----------
    produced_by : tuple of str
        Tensors with one neuron (or channel) a row: weight, bias, and those of its normalisation.
    read_by : tuple of str
        Weights with the neurons on axis 1; behind a flattening, a block of columns for each.
    """

    produced_by: tuple[str, ...]
    read_by: tuple[str, ...]


def permute_neurons(model: Adapter, layer: HiddenLayer, seed: int) -> Adapter:
    """Return the same function with a layer's neurons in another order, none in its place.

    No score of features or outputs can see it, and every mean of parameters with it is broken.
    Of a LoRA model only what is trained whole can be permuted, such as a head of two layers.
    """
    _check_names(model, (*layer.produced_by, *layer.read_by))
    width = len(model.tensors[layer.produced_by[0]])
    order = derangement(width, seed)
    changed: dict[str, Array] = {}
    for name in layer.produced_by:
        if len(model.tensors[name]) != width:
            raise ValueError(f"{name}: expected {width} rows, got {len(model.tensors[name])}")
        changed[name] = model.tensors[name][order]
    for name in layer.read_by:
        tensor = model.tensors[name]
        if tensor.ndim < 2 or tensor.shape[1] % width:
            raise ValueError(
                f"{name}: expected a multiple of {width} columns, got shape {tensor.shape}"
            )
        blocks = tensor.reshape(len(tensor), width, -1)
        changed[name] = blocks[:, order].reshape(tensor.shape)
    return _with_tensors(model, changed)


def non_finite(model: Adapter, value: float, share: float, seed: int) -> Adapter:
    """Return the model with a share of every array's numbers, at least one, set to NaN or Inf."""

    def broken(name: str, x: Array) -> Array:
        count = min(x.size, max(1, round(share * x.size)))
        where = _generator(seed, name).choice(x.size, count, replace=False)
        result = x.copy()
        result.reshape(-1)[where] = value
        return result

    return model.map(broken)


# ---- with what the site received or sent ------------------------------------------------------


def scale_update(start: Adapter, model: Adapter, factor: float) -> Adapter:
    """Return ``theta_0 + factor (theta - theta_0)``; a product is cut to the rank of the pair.

    Parameters
    ----------
    start : Adapter
        The model that the round began with.
    model : Adapter
        As trained.
    factor : float
        -1 flips the sign of the update, large numbers boost it.
    """
    return combine([(1 - factor, start), (factor, model)])[0]


def free_rider(start: Adapter, std: float, seed: int) -> Adapter:
    """Return what the round began with, with noise that shall look like work: no training."""
    return additive_noise(start, std, seed) if std else start


def replay(sent: Sequence[Adapter], delay: int) -> Adapter:
    """Return the model of ``delay`` rounds ago, the oldest if there is none so old.

    Parameters
    ----------
    sent : sequence of Adapter
        The site's own models, oldest first, this round's last.
    delay : int
    """
    if not sent or delay < 0:
        raise ValueError(f"expected models and a delay >= 0, got {len(sent)} and {delay}")
    return sent[max(0, len(sent) - 1 - delay)]


# ---- with what other sites sent ---------------------------------------------------------------


def alie(models: Sequence[Adapter], z: float) -> Adapter:
    """Return ``mean - z std``, number by number over the models that the attacker knows.

    The standard deviation is that of a population. With one model it is 0, and so is the attack.
    """
    stacks = _stack(models)
    return models[0].map(
        lambda name, _: _float32(stacks[name].mean(axis=0) - z * stacks[name].std(axis=0))
    )


def alie_z(sites: int, faulty: int) -> float:
    """Return the largest z that still hides: ``Phi^-1((n - m - s) / (n - m))``.

    ``s = floor(n / 2 + 1) - m`` is how many honest sites must be outdone to hold a majority.

    Raises
    ------
    ValueError
        Where the formula has no value: none is needed (s <= 0), or there is none to outdo.
    """
    needed = sites // 2 + 1 - faulty
    honest = sites - faulty
    if not 0 < needed < honest:
        raise ValueError(
            f"with {faulty} of {sites} sites faulty the formula gives no z; choose one, such as 1.5"
        )
    return NormalDist().inv_cdf((honest - needed) / honest)


def ipm(models: Sequence[Adapter], epsilon: float, start: Adapter | None = None) -> Adapter:
    """Return ``-epsilon mean_k(theta_k)``; a product is cut to the rank of the pair.

    With a start the attack is on updates: ``theta_0 - epsilon mean_k(theta_k - theta_0)``.

    Parameters
    ----------
    models : sequence of Adapter
        Those that the attacker knows.
    epsilon : float
        Below 1 the attack is shorter than what it opposes.
    start : Adapter, optional
        The model that the round began with.
    """
    terms = [(-epsilon / len(models), model) for model in models]
    if start is not None:
        terms = [(1 + epsilon, start), *terms]
    return combine(terms)[0]


# ---- data ---------------------------------------------------------------------------------------


def flip_labels(labels: NDArray[np.integer[Any]], classes: int) -> NDArray[np.integer[Any]]:
    """Return ``C - 1 - y``, on which a faulty site then trains honestly."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"labels must be within 0..{classes - 1}, got {labels.min()}..{labels.max()}"
        )
    return np.asarray(classes - 1 - labels, dtype=labels.dtype)


def derangement(count: int, seed: int) -> NDArray[np.int64]:
    """Return a seeded permutation of 0..count-1, a single cycle, that leaves nothing in place."""
    if count < 2:
        raise ValueError(f"{count} thing(s) cannot be put into another order")
    cycle = np.random.default_rng(derive_seed(seed, "derangement")).permutation(count)
    order = np.empty(count, dtype=np.int64)
    order[cycle] = np.roll(cycle, 1)
    return order


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, "attack", name))


def _normal(x: Array, seed: int, name: str) -> NDArray[np.float64]:
    return _generator(seed, name).standard_normal(x.shape)


def _float32(x: NDArray[Any]) -> Array:
    with np.errstate(over="ignore"):  # an overflow is part of an attack
        return np.asarray(x, dtype=np.float32)


def _stack(models: Sequence[Adapter]) -> dict[str, NDArray[np.float64]]:
    arrays = [dict(model.arrays()) for model in models]
    return {name: np.stack([each[name] for each in arrays]).astype(float) for name in arrays[0]}


def _with_tensors(model: Adapter, changed: dict[str, Array]) -> Adapter:
    return Adapter(model.pairs, {**model.tensors, **changed})


def _check_names(model: Adapter, names: Collection[str]) -> None:
    unknown = sorted(set(names) - model.tensors.keys())
    if unknown or not names:
        raise ValueError(
            f"expected names among the trained tensors {sorted(model.tensors)}, got {sorted(names)}"
        )
