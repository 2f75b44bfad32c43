"""The gradient of every record's own loss, of many records at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import Parameter

Gradients = dict[str, Tensor]


class NotPerRecord(Exception):
    """A layer does not have one row of input for each record."""


@dataclass
class _Call:
    """What went into a layer in the forward pass, and what came out."""

    module: nn.Module
    names: dict[str, str]  # of its own parameters: to the names asked for
    inputs: Tensor
    output: Tensor


def record_gradients(
    model: nn.Module, wanted: Mapping[str, Parameter], loss: Callable[[], Tensor], shares_n: Tensor
) -> Gradients:
    """Return ``d loss_i / d w`` for each record i of a batch and each parameter w.

    One forward and one backward pass of the whole batch, which give what went into every layer
    that owns a wanted parameter and the gradient of what came out. Of these, record by record, the
    layer's own vector-Jacobian product is what the record's gradient is made of, vectorised over
    the records. So nothing is asked of the rest of the model, and a layer of any kind will do.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode: records do not influence one another.
    wanted : mapping of str to Parameter
    loss : callable
        Computes ``sum_i share_i loss_i`` of the batch.
    shares_n : Tensor, shape (records,)

    Returns
    -------
    dict of str to Tensor
        Of shape (records, ...), by the names of ``wanted``; one that has no part is left out.

    Raises
    ------
    NotPerRecord
        If a layer's input has not one row for each record, as where a record is several sequences.
    """
    with _watched(model, wanted) as calls:
        total = loss()
    if not calls:
        return {}
    outer = torch.autograd.grad(total, [call.output for call in calls], allow_unused=True)
    found: Gradients = {}
    for call, output_gradient in zip(calls, outer, strict=True):
        if output_gradient is None:
            continue
        for name, gradient in _of_layer(call, output_gradient, len(shares_n)).items():
            scale = shares_n.reshape(-1, *[1] * (gradient.dim() - 1))
            gradient = gradient / scale
            found[name] = found[name] + gradient if name in found else gradient
    return found


def one_by_one(
    wanted: Mapping[str, Parameter], losses: Sequence[Callable[[], Tensor]]
) -> Iterator[Gradients]:
    """Yield the same, a record at a time, by a backward pass each; ``losses`` are the records'."""
    for loss in losses:
        found = torch.autograd.grad(loss(), list(wanted.values()), allow_unused=True)
        yield {n: g[None] for n, g in zip(wanted, found, strict=True) if g is not None}


class _watched(ExitStack):
    """Notes the calls of every layer that owns a wanted parameter, for a while."""

    def __init__(self, model: nn.Module, wanted: Mapping[str, Parameter]) -> None:
        super().__init__()
        self._model, self._name = model, {id(p): name for name, p in wanted.items()}
        self._calls: list[_Call] = []

    def __enter__(self) -> list[_Call]:  # type: ignore[override]
        for module in self._model.modules():
            own = module.named_parameters(recurse=False)
            if names := {key: self._name[id(p)] for key, p in own if id(p) in self._name}:
                self.callback(module.register_forward_hook(self._hook(names)).remove)
        return self._calls

    def _hook(self, names: dict[str, str]) -> Callable[..., None]:
        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if len(inputs) != 1 or not all(isinstance(x, Tensor) for x in (inputs[0], output)):
                raise NotPerRecord(f"{type(module).__name__} takes or gives more than one tensor")
            self._calls.append(_Call(module, names, inputs[0].detach(), output))

        return note


def _of_layer(call: _Call, output_gradient: Tensor, records: int) -> Gradients:
    if call.inputs.shape[0] != records or output_gradient.shape[0] != records:
        raise NotPerRecord(
            f"{type(call.module).__name__} has {call.inputs.shape[0]} rows of {records} records"
        )
    fixed = {k: p.detach() for k, p in call.module.named_parameters() if k not in call.names}
    own = {k: p.detach() for k, p in call.module.named_parameters() if k in call.names}

    def of_record(x: Tensor, g: Tensor) -> Gradients:
        def output(parameters: Gradients) -> Tensor:
            found: Tensor = functional_call(call.module, {**fixed, **parameters}, (x[None],))
            return found[0]

        found: Gradients = vjp(output, own)[1](g)[0]
        return found

    gradients: Gradients = vmap(of_record)(call.inputs, output_gradient)
    return {call.names[key]: gradient for key, gradient in gradients.items()}
