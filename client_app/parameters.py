"""The live LoRA pairs and heads of a resident model, as one adapter that can be swapped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.random import Generator, default_rng
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from torch.nn import Parameter

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.errors import ConfigError, UpdateRefused
from fedapp.peft_names import PREFIX
from fedapp.seeds import derive_seed

_ADAPTER = "default"  # PEFT's name of the only adapter


class LivePair(NamedTuple):
    """One LoRA pair inside a model.

    Attributes
    ----------
    b_mr : Parameter, shape (out_features, r)
    a_rn : Parameter, shape (r, in_features)
    scaling : float
    """

    b_mr: Parameter
    a_rn: Parameter
    scaling: float


class AdapterParameters:
    """The trainable parameters of a PEFT model under the names of `Adapter`.

    Swapping an adapter copies numbers into these parameters; no module is rebuilt.

    Parameters
    ----------
    model : nn.Module
        What ``peft.get_peft_model`` returned.
    initializer_range : float or None
        Standard deviation of a fresh head's weights, as in the model's own config; None: the root
        of 2 / fan_in.

    Attributes
    ----------
    pairs : dict of str to LivePair
    tensors : dict of str to Parameter
    layers : dict of str to LoraLayer
        PEFT's layer around each pair and its frozen layer.
    """

    def __init__(self, model: nn.Module, initializer_range: float | None = 0.02) -> None:
        pairs: dict[str, LivePair] = {}
        tensors: dict[str, Parameter] = {}
        layers: dict[str, LoraLayer] = {}
        self._initializer_range = initializer_range
        self._ones: set[str] = set()  # weights of normalisation layers inside a head
        for path, module in model.named_modules():
            name = path.removeprefix(PREFIX)
            if isinstance(module, LoraLayer):
                layers[name] = module
                b_mr, a_rn = module.lora_B[_ADAPTER].weight, module.lora_A[_ADAPTER].weight
                pairs[name] = LivePair(
                    cast(Parameter, b_mr), cast(Parameter, a_rn), float(module.scaling[_ADAPTER])
                )
            elif isinstance(module, ModulesToSaveWrapper):
                head = module.modules_to_save[_ADAPTER]
                tensors |= {f"{name}.{key}": value for key, value in head.named_parameters()}
                self._ones |= {f"{name}.{key}" for key in _norm_weights(head)}
        self.pairs = dict(sorted(pairs.items()))
        self.layers = dict(sorted(layers.items()))
        self.tensors = dict(sorted(tensors.items()))
        self._check_precision()

    def take_whole(self, model: nn.Module) -> None:
        """Take every parameter of a model without PEFT as a full tensor."""
        self.tensors = dict(sorted(model.named_parameters()))
        self._ones = set(_norm_weights(model))
        self._check_precision()

    def _check_precision(self) -> None:
        for name, parameter in self.named_arrays():
            if parameter.dtype != torch.float32:
                raise ConfigError(f"adapter array '{name}' is {parameter.dtype}, expected fp32")

    def named_arrays(self) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(name, parameter)`` in the order and with the names of ``Adapter.arrays``."""
        for name, pair in self.pairs.items():
            yield f"{name}.lora_A", pair.a_rn
            yield f"{name}.lora_B", pair.b_mr
        yield from self.tensors.items()

    def load(self, adapter: Adapter) -> None:
        """Copy an adapter's numbers into the model.

        Raises
        ------
        UpdateRefused
            If names, shapes or scalings differ from the model's; the model is then unchanged.
        """
        self._check(adapter)
        for (_, parameter), (_, array) in zip(self.named_arrays(), adapter.arrays(), strict=True):
            _write(parameter, array)

    def read(self) -> Adapter:
        """Return a copy of the current numbers."""
        return Adapter(
            {
                name: LoraPair(b_mr=read_array(b_mr), a_rn=read_array(a_rn), scaling=scaling)
                for name, (b_mr, a_rn, scaling) in self.pairs.items()
            },
            {name: read_array(tensor) for name, tensor in self.tensors.items()},
        )

    def initial(self, seed: int) -> Adapter:
        """Return the seeded adapter from which every site starts.

        Each array has a generator of its own, so the numbers depend on the seed, the array's name
        and its shape, and neither on the process nor on the number of threads. A is
        Kaiming-uniform with a = sqrt(5), that is uniform in +-1/sqrt(in_features), and B is zero,
        as in PEFT; a head's weights are normal with the model's initializer_range and its
        biases zero, as in transformers. The model itself is not changed.
        """
        pairs = {
            name: LoraPair(
                b_mr=np.zeros(b_mr.shape, np.float32),
                a_rn=_uniform(
                    _generator(seed, f"{name}.lora_A"), a_rn.shape, 1 / math.sqrt(a_rn.shape[1])
                ),
                scaling=scaling,
            )
            for name, (b_mr, a_rn, scaling) in self.pairs.items()
        }
        tensors = {
            name: self._initial_tensor(name, tuple(tensor.shape), seed)
            for name, tensor in self.tensors.items()
        }
        return Adapter(pairs, tensors)

    def _initial_tensor(self, name: str, shape: Sequence[int], seed: int) -> Array:
        if name in self._ones:
            return np.ones(shape, np.float32)
        if len(shape) < 2:
            return np.zeros(shape, np.float32)
        spread = self._initializer_range
        if spread is None:
            spread = math.sqrt(2 / math.prod(shape[1:]))
        noise = _generator(seed, name).standard_normal(shape)
        return (noise * spread).astype(np.float32)

    def _check(self, adapter: Adapter) -> None:
        for kind, mine, theirs in (
            ("pair", self.pairs.keys(), adapter.pairs.keys()),
            ("tensor", self.tensors.keys(), adapter.tensors.keys()),
        ):
            if odd := sorted(mine ^ theirs):
                whose = "lacks" if odd[0] in mine else "has an unknown"
                raise UpdateRefused(
                    f"the adapter {whose} {kind} '{odd[0]}'; this model has {len(mine)} {kind}s, "
                    f"the adapter {len(theirs)}",
                    reason="wrong-layout",
                )
        for name, pair in self.pairs.items():
            if not math.isclose(pair.scaling, adapter.pairs[name].scaling, rel_tol=1e-6):
                raise UpdateRefused(
                    f"pair '{name}' has scaling {adapter.pairs[name].scaling}, expected "
                    f"{pair.scaling}; lora.alpha or lora.rank differ",
                    reason="wrong-layout",
                )
        for (name, parameter), (_, array) in zip(
            self.named_arrays(), adapter.arrays(), strict=True
        ):
            if tuple(parameter.shape) != array.shape:
                raise UpdateRefused(
                    f"array '{name}' has shape {array.shape}, expected {tuple(parameter.shape)}",
                    reason="wrong-shape",
                )


def _norm_weights(module: nn.Module) -> Iterator[str]:
    for name, child in module.named_modules():
        if "norm" in type(child).__name__.lower():
            yield f"{name}.weight" if name else "weight"


def _generator(seed: int, name: str) -> Generator:
    return default_rng(derive_seed(seed, "initial", name))


def _uniform(generator: Generator, shape: Sequence[int], bound: float) -> Array:
    return generator.uniform(-bound, bound, shape).astype(np.float32)


def _write(parameter: Parameter, array: Array) -> None:
    # A received array is often a read-only view, which torch.from_numpy warns about.
    if parameter.device.type == "cpu":
        np.copyto(parameter.detach().numpy(), array)
    else:
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.array(array, np.float32)))


def read_array(parameter: Parameter) -> Array:
    """Return a copy of a parameter's numbers."""
    return np.array(parameter.detach().cpu().numpy(), np.float32)
