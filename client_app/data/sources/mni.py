"""Slices of a brain and their grey and white matter: the MNI152 template, cut into four slabs.

Data: ICBM 152 nonlinear symmetric template 2009a, Copyright (C) 1993-2009 Louis Collins, McConnell
Brain Imaging Centre, Montreal Neurological Institute, McGill University (V. Fonov et al., 2009), as
packed in nilearn; free to use with that notice.

It is an exercise: one averaged brain, whose neighbouring slices are much alike, also when one of
them is for training and the other for the test.
"""

from __future__ import annotations

import gzip
import math
import struct

import numpy as np
from numpy.typing import NDArray

from client_app.data.schemas.images import masked_image
from client_app.data.sources.pinned import pinned_members
from client_app.data.table import Table

NAME = "embedded:mni"
WHEEL = "nilearn-0.14.1-py3-none-any.whl"
SHA256 = "725206484e9fb3f6691f9c2d20204a068759d5072f12055324702ee0cb2bbe8a"
CLASSES = ("background", "grey matter", "white matter")
SITES = ("slab-1", "slab-2", "slab-3", "slab-4")  # from below
LEAST_SHARE = 0.01  # of a slice's pixels that each matter must have
_FILE = "nilearn/datasets/data/mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"

Volume = NDArray[np.float32]


def read_mni() -> Table:
    """Read the horizontal slices that show both kinds of matter, at half the resolution.

    A pixel is the mean of 2 x 2. It is of the kind of matter whose probability is above a half.

    Raises
    ------
    DataError
        If the package is not in the cache folder.
    """
    files = [_FILE.format(kind) for kind in ("t1", "gm", "wm")]
    packed = pinned_members(NAME, WHEEL, SHA256, files)
    t1_xyz, grey_xyz, white_xyz = (halve(read_volume(gzip.decompress(file))) for file in packed)
    masks_xyz = np.where(grey_xyz > 0.5, 1, np.where(white_xyz > 0.5, 2, 0)).astype(np.uint8)
    shares_cz = np.stack([(masks_xyz == c).mean(axis=(0, 1)) for c in (1, 2)])
    usable = np.flatnonzero(shares_cz.min(axis=0) >= LEAST_SHARE)
    examples, sites = [], []
    for site, slab in zip(SITES, np.array_split(usable, len(SITES)), strict=True):
        for z in slab:
            # The front of the head is up.
            image, mask = (np.rot90(volume[:, :, z]).copy() for volume in (t1_xyz, masks_xyz))
            examples.append(masked_image(image[:, :, None], mask))
            sites.append(site)
    return Table(NAME, examples, sites, label_map=CLASSES)


def read_volume(file: bytes) -> NDArray[np.uint8]:
    """Return the voxels (x, y, z) of one of the three known NIfTI-1 files: bytes, unscaled."""
    shape = struct.unpack_from("<3h", file, 42)
    (start,) = struct.unpack_from("<f", file, 108)
    voxels = np.frombuffer(file, np.uint8, math.prod(shape), int(start))
    return voxels.reshape(shape, order="F")


def halve(volume_xyz: NDArray[np.uint8]) -> Volume:
    """Return a volume of 0 to 1, halved in both directions of a slice."""
    x, y, z = volume_xyz.shape
    blocks = volume_xyz[: x // 2 * 2, : y // 2 * 2].reshape(x // 2, 2, y // 2, 2, z)
    halved: Volume = (blocks.mean(axis=(1, 3)) / 255).astype(np.float32)
    return halved
