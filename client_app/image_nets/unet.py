"""A U-Net with group normalisation, for one class a pixel."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from client_app.image_nets.base import ImageNet

GROUPS = 4


class UNet(ImageNet):
    """Down by pooling, up by repeating pixels, with the maps of the way down beside those up.

    Ronneberger et al., arXiv 1505.04597, with padding, so that maps keep their size, and group
    normalisation (arXiv 1803.08494), which has no running statistics.

    Parameters
    ----------
    settings : mapping
        ``channels``, ``widths`` (of each level, the finest first; multiples of 4).
    outputs : int
        Number of classes.
    """

    task = "image-segmentation"

    def __init__(self, settings: Mapping[str, Any], outputs: int) -> None:
        super().__init__(settings)
        widths = list(settings["widths"])
        self.down = nn.ModuleList(
            _block(before, width)
            for before, width in zip([self.channels, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(_block(fine + coarse, fine) for fine, coarse in pairwise(widths))
        self.head = nn.Conv2d(widths[0], outputs, kernel_size=1)

    def features(self, pixels_bchw: Tensor) -> Tensor:
        """Return one row of features a pixel, (b, D, h, w), for images of any size."""
        passed: list[Tensor] = []
        x = pixels_bchw
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else max_pool2d(x, 2, ceil_mode=True))
            passed.append(x)
        for number in reversed(range(len(self.up))):
            fine = passed[number]
            x = self.up[number](torch.cat([fine, interpolate(x, fine.shape[2:])], dim=1))
        return x


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, after),
        nn.ReLU(),
    )
