"""Batch normalisation, which no federated average can follow."""

from __future__ import annotations

from torch import nn

from client_app.sources import ModelSource, short_name
from fedapp.errors import ConfigError


def refuse_running_statistics(model: nn.Module, source: ModelSource) -> None:
    """Refuse batch normalisation.

    Its running mean and variance change while training and are no parameters: averaged parameters
    would meet another site's statistics, and a frozen base model would not stay as it is.

    Raises
    ------
    ConfigError
        Naming the first such layer.
    """
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ConfigError(
                f"model.source {short_name(source.name)}: layer '{name}' is a "
                f"{type(module).__name__} with running statistics, which no federated average "
                "keeps in step with the weights; name a model with group or layer normalisation"
            )
