"""Linear layers of forward passes on a CPU by oneDNN, which PyTorch itself asks for half precision.

For fp32 PyTorch asks MKL, which on processors that are not Intel's leaves half of their vector
units idle: on an EPYC of family 26 oneDNN takes less than half the time, on the same numbers with
the same precision. It has no derivative here, so that training goes on as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

SMALLEST = 2**16
"""Numbers of a weight below which the call costs more than it saves."""


def fast_linear(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context for forward passes without gradients; nothing where it would not help.

    Parameters
    ----------
    model : nn.Module
        Whether it has a linear layer that is large enough.
    device : torch.device
    """
    large = (m for m in model.modules() if isinstance(m, nn.Linear) and _is_large(m.weight))
    useful = device.type == "cpu" and _linear() is not None and next(large, None) is not None
    return _OneDnn() if useful else nullcontext()


class _OneDnn(TorchFunctionMode):
    """Sends calls of `torch.nn.functional.linear` to oneDNN, where they are plain and large."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is functional.linear and not kwargs and _is_plain(*args):
            x, weight, bias = (*args, None)[:3]
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return func(*args, **(kwargs or {}))


def _is_plain(x: Any, weight: Any, bias: Any = None) -> bool:
    given = [each for each in (x, weight, bias) if each is not None]
    return (
        all(type(each) in (Tensor, nn.Parameter) and _is_single(each) for each in given)
        and x.numel() > 0
        and _is_large(weight)
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def _is_single(value: Tensor) -> bool:
    return value.dtype == torch.float32 and value.device.type == "cpu"


def _is_large(weight: Tensor) -> bool:
    return weight.ndim == 2 and weight.numel() >= SMALLEST


def _linear() -> Any:
    """Return the operator, which is PyTorch's own and may go: then everything is as without it."""
    built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if built else None
