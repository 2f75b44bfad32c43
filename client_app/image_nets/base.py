"""What every network for images has: a body that gives features, and one linear layer on top."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class ImageNet(nn.Module):
    """A network ``head(features(x))`` whose head is one linear layer or 1 x 1 convolution.

    None of them has batch normalisation: its running statistics are no parameters, so that they
    would stay behind when parameters are averaged, and averaged themselves they belong to no model.

    Parameters
    ----------
    settings : mapping
        Content of ``config.json``.

    Attributes
    ----------
    settings : dict
    channels : int
        Of the images: 1 grey, 3 colour.
    head : nn.Linear or nn.Conv2d
    drawn : set of str
        Parameters that no file holds, or that a file holds untrained: each run draws them anew.
    """

    initializer_range: float | None = None
    """None: normal numbers of the variance ``2 / fan_in``, which suits a ReLU (He et al. 2015)."""

    task: str
    """Value of ``model.task`` that the network answers."""
    head: nn.Linear | nn.Conv2d

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = dict(settings)
        self.channels = int(settings["channels"])
        self.drawn: set[str] = set()

    @abstractmethod
    def features(self, pixels_bchw: Tensor) -> Tensor:
        """Return what the head is given: (b, D), or (b, D, h, w) before a convolution."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of images (b, c, h, w): (b, outputs), or (b, outputs, h, w)."""
        logits: Tensor = self.head(self.features(pixel_values))
        return logits
