"""What was learned in earlier rounds, inside the frozen base weights, for one instruction.

With it in place a model that has learned for a hundred rounds costs what one of the first round
does. Several sites, methods and rounds use the same resident base: everything is put back, bit for
bit, when the instruction ends.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from client_app.runtime import full_precision
from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import UpdateRefused

if TYPE_CHECKING:
    from client_app.models import ResidentModel


class Folding:
    """Adds a delta to the weights of the adapted layers and restores them on exit.

    A weight becomes ``W + s B A`` from a copy of W that is kept meanwhile, never from an earlier
    sum: the result does not depend on what was there before. A quantised weight is not touched; its
    layer gets the pair as a second, frozen one, which costs ``O(rank)`` more a token.

    Parameters
    ----------
    resident : ResidentModel
    """

    def __init__(self, resident: ResidentModel) -> None:
        self._parameters = resident.parameters
        self._pristine: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def apply(self, delta: Adapter | None) -> None:
        """Put ``delta`` in place of what was applied before; None: the base model alone.

        Raises
        ------
        UpdateRefused
            If its names or shapes are not those of the adapted layers. The base model is pristine
            then.
        """
        self.restore()
        if delta is None:
            return
        self._check(delta)
        with torch.no_grad(), full_precision():
            for name, pair in delta.pairs.items():
                base: Any = self._parameters.layers[name].get_base_layer()
                b_mr, a_rn = (_on(array, base.weight) for array in (pair.b_mr, pair.a_rn))
                if _can_fold(base.weight):
                    self._fold(name, base, pair.scaling, b_mr, a_rn)
                else:
                    self._stack(base, pair.scaling, b_mr, a_rn)

    def restore(self) -> None:
        """Put the base model back, bit for bit."""
        for hook in self._hooks:
            hook.remove()
        for name, weight in self._pristine.items():
            base: Any = self._parameters.layers[name].get_base_layer()
            base.weight.data.copy_(weight)
        self._hooks, self._pristine = [], {}

    def _fold(self, name: str, base: Any, scaling: float, b_mr: Tensor, a_rn: Tensor) -> None:
        weight = self._pristine[name] = base.weight.data.clone()
        product = b_mr @ a_rn
        if isinstance(base, Conv1D):  # keeps its weight transposed
            product = product.T
        base.weight.data.copy_(torch.add(weight.float(), product, alpha=scaling))

    def _stack(self, base: nn.Module, scaling: float, b_mr: Tensor, a_rn: Tensor) -> None:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            more = linear(linear(inputs[0].to(a_rn.dtype), a_rn), b_mr)
            return output + (scaling * more).to(output.dtype)

        self._hooks.append(base.register_forward_hook(add))

    def _check(self, delta: Adapter) -> None:
        layers = self._parameters.layers
        if odd := sorted(set(delta.pairs) ^ set(layers)):
            whose = "lacks" if odd[0] in layers else "has an unknown"
            raise UpdateRefused(
                f"the coordinator's 'folded' {whose} pair '{odd[0]}'; this model has "
                f"{len(layers)} pairs, 'folded' {len(delta.pairs)}",
                reason="wrong-layout",
            )
        if delta.tensors:
            raise UpdateRefused(
                f"the coordinator's 'folded' holds the tensor '{min(delta.tensors)}'; expected "
                "pairs alone",
                reason="wrong-layout",
            )
        for name, pair in delta.pairs.items():
            _check_shape(name, pair, layers[name])


def _check_shape(name: str, pair: LoraPair, layer: Any) -> None:
    got = pair.b_mr.shape[0], pair.a_rn.shape[1]
    if got != (expected := (layer.out_features, layer.in_features)):
        raise UpdateRefused(
            f"the coordinator's 'folded' changes '{name}' by a {got[0]} x {got[1]} matrix, "
            f"expected {expected[0]} x {expected[1]}",
            reason="wrong-shape",
        )


def _can_fold(weight: Tensor) -> bool:
    return weight.is_floating_point()


def _on(array: Any, weight: Tensor) -> Tensor:
    return torch.tensor(array, dtype=torch.float32, device=weight.device)
