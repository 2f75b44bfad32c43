"""Handwritten digits: 1,797 grey images of 8 x 8 pixels, without sites of their own.

Data: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test set), UCI Machine
Learning Repository (1998), CC BY 4.0, as packed in
scikit-learn.
"""

from __future__ import annotations

import gzip
import io

import numpy as np

from client_app.data.schemas.images import labelled_image
from client_app.data.sources.pinned import pinned_members
from client_app.data.table import Table

NAME = "embedded:digits"
# One wheel for every machine: nothing of it is run.
WHEEL = "scikit_learn-1.9.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
SHA256 = "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df"
LABELS = tuple("0123456789")
SIDE, WHITE = 8, 16.0


def read_digits() -> Table:
    """Read the images; pixels are shares of the largest value.

    Raises
    ------
    DataError
        If the package is not in the cache folder.
    """
    (packed,) = pinned_members(NAME, WHEEL, SHA256, ["sklearn/datasets/data/digits.csv.gz"])
    lines = io.BytesIO(gzip.decompress(packed))
    numbers = np.loadtxt(lines, delimiter=",", dtype=np.int64)
    images = (numbers[:, :-1] / WHITE).astype(np.float32).reshape(-1, SIDE, SIDE, 1)
    return Table(
        name=NAME,
        examples=[
            labelled_image(image, LABELS[digit])
            for image, digit in zip(images, numbers[:, -1], strict=True)
        ],
        sites=None,
        label_map=LABELS,
    )
