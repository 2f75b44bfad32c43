"""Plain convolutions and one hidden layer, for one label an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from client_app.image_nets.base import ImageNet

GRID = 2
"""Height and width of the map before the hidden layer, whatever the size of the image."""


class ConvNet(ImageNet):
    """3 x 3 convolutions with ReLU, maximum pooling after some, a hidden layer, the head.

    There is no normalisation. These nets are shallow enough to train without, and behind a
    normalisation the sign of all weights would hardly show (see docs/imaging.md).

    Parameters
    ----------
    settings : mapping
        ``channels``, ``widths`` (of each convolution), ``pool_after`` (numbers of convolutions from
        1), ``hidden``.
    outputs : int
        Number of labels.
    """

    task = "image-classification"

    def __init__(self, settings: Mapping[str, Any], outputs: int) -> None:
        super().__init__(settings)
        body: list[nn.Module] = []
        before = self.channels
        for number, width in enumerate(settings["widths"], start=1):
            body += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            if number in settings["pool_after"]:
                body.append(nn.MaxPool2d(2))
            before = width
        # Pooling to one grid serves images of every size.
        self.body = nn.Sequential(*body, nn.AdaptiveAvgPool2d(GRID), nn.Flatten())
        self.hidden = nn.Linear(before * GRID * GRID, settings["hidden"])
        self.head = nn.Linear(settings["hidden"], outputs)

    def features(self, pixels_bchw: Tensor) -> Tensor:
        """Return the hidden layer's outputs, (b, hidden)."""
        hidden: Tensor = self.hidden(self.body(pixels_bchw))
        return hidden.relu()
