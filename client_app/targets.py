"""Which layers get a LoRA pair, checked before PEFT sees their names."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedapp.errors import ConfigError


def target_layers(
    model: nn.Module, targets: Sequence[str], heads: Sequence[str]
) -> dict[str, nn.Module]:
    """Return the layers that the names in ``lora.targets`` select, by module path.

    A name selects the layers whose path is the name or ends in ``.name``, as in PEFT. Layers inside
    a head are left out, since a head is trained in full.

    Parameters
    ----------
    model : nn.Module
        The base model.
    targets : sequence of str
    heads : sequence of str
        Paths of the modules trained in full.

    Raises
    ------
    ConfigError
        If a name selects no layer, something other than a linear layer, or one with a weight
        that another module shares.
    """
    shared = _shared_weights(model)
    linear: dict[str, nn.Linear | Conv1D] = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and not _inside(name, heads)
    }
    free = [name for name, layer in linear.items() if _place(layer.weight) not in shared]
    chosen: dict[str, nn.Module] = {}
    for target in targets:
        matching = {
            name: layer
            for name, layer in model.named_modules(remove_duplicate=False)
            if name == target or name.endswith(f".{target}")
        }
        outside = {name: layer for name, layer in matching.items() if not _inside(name, heads)}
        if matching and not outside:
            raise ConfigError(
                f"lora.targets names '{target}', which is the head and is trained in full anyway; "
                f"{_advice(target, free)}"
            )
        if not outside:
            raise ConfigError(
                f"lora.targets names '{target}', but the model has no such layer; "
                f"{_advice(target, free)}"
            )
        for name, layer in outside.items():
            if isinstance(weight := getattr(layer, "weight", None), Tensor) and (
                _place(weight) in shared
            ):
                raise ConfigError(
                    f"lora.targets names '{target}', but the weight of '{name}' is tied to another "
                    f"module's, so a pair there would change both; {_advice(target, free)}"
                )
            if name not in linear:
                raise ConfigError(
                    f"lora.targets names '{target}', but '{name}' is a {type(layer).__name__} and "
                    f"only linear layers can have a pair; {_advice(target, free)}"
                )
        chosen |= outside
    return chosen


def _inside(name: str, heads: Sequence[str]) -> bool:
    return any(name == head or name.startswith(f"{head}.") for head in heads)


def _shared_weights(model: nn.Module) -> set[int]:
    """Return the places of weights that several modules have, or one module under several names."""
    owners = Counter(
        _place(parameter)
        for _, module in model.named_modules(remove_duplicate=False)
        for parameter in module._parameters.values()
        if parameter is not None
    )
    return {place for place, count in owners.items() if count > 1}


def _place(weight: Tensor) -> int:
    """Where its numbers are: two parameters around the same numbers are tied too."""
    return weight.data_ptr() or id(weight)  # on the meta device there are none


def _advice(target: str, free: Iterable[str]) -> str:
    short = list(dict.fromkeys(_short_names(free)))
    near = difflib.get_close_matches(target.rsplit(".", 1)[-1], short, n=3, cutoff=0.5)
    rest = [name for name in short if name not in near]
    return f"name linear layers such as {', '.join([*near, *rest][:6])}"


def _short_names(linear: Iterable[str]) -> Iterator[str]:
    for name in linear:
        yield name.rsplit(".", 1)[-1]
