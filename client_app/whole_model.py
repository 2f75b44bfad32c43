"""All parameters of a model trained, without LoRA: ``model.trainable = "all"``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from client_app.image_nets import ImageNet
from client_app.parameters import AdapterParameters, read_array
from client_app.peft_model import fresh_modules
from client_app.sources import ModelSource
from client_app.tasks.base import Task
from fedapp.adapter import Adapter


class WholeParameters(AdapterParameters):
    """Every parameter of a model as a full tensor of an `Adapter` without pairs.

    Parameters
    ----------
    model : nn.Module
        What is trained; it shares no numbers with ``base``.
    base : nn.Module
        The same model with the numbers that training begins with. Nobody changes them.
    drawn : sequence of str
        Names, or beginnings of names, of what is drawn from the run's seed instead.
    initializer_range : float or None
        See `AdapterParameters`.
    """

    def __init__(
        self,
        model: nn.Module,
        base: nn.Module,
        drawn: Sequence[str],
        initializer_range: float | None,
    ) -> None:
        super().__init__(model, initializer_range)
        self._base = dict(base.named_parameters())
        self._drawn = tuple(drawn)
        self.take_whole(model)

    def initial(self, seed: int) -> Adapter:
        """Return the numbers of the base model; what it lacks is drawn from the seed.

        Each array that is drawn has a generator of its own, as in `AdapterParameters.initial`.
        """
        return Adapter(
            {},
            {
                name: self._initial_tensor(name, tuple(tensor.shape), seed)
                if self._is_drawn(name)
                else read_array(self._base[name])
                for name, tensor in self.tensors.items()
            },
        )

    def _is_drawn(self, name: str) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in self._drawn)


def whole_model(
    base: nn.Module, task: Task, source: ModelSource
) -> tuple[nn.Module, WholeParameters, dict[str, Any]]:
    """Copy the base model, so that all of the copy can be trained.

    Returns
    -------
    model : nn.Module
    parameters : WholeParameters
    settings : dict
        What the handshake tells of it in place of PEFT's settings.
    """
    model = copy.deepcopy(base).requires_grad_(True)
    if isinstance(base, ImageNet):
        drawn, spread = sorted(base.drawn), base.initializer_range
    else:
        heads = task.heads(base)
        drawn = [*heads, *fresh_modules(base, heads)]
        spread = float(getattr(getattr(base, "config", None), "initializer_range", 0.02))
    settings = {"base_model_name_or_path": source.name, "task_type": task.peft_task_type}
    return model, WholeParameters(model, base, drawn, spread), settings
