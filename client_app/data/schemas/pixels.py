"""Images and masks of a row, checked. Messages tell sizes and kinds, never a pixel."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.data.schemas.values import kind
from fedapp.errors import DataError

Pixels = NDArray[Any]
LEAST_SIDE, LARGEST_SIDE = 4, 4096
CHANNELS = (1, 3)
MOST_CLASSES = 255
_WORDS = {0: "one number", 1: "a row of numbers"}


def read_image(value: Any, where: str, site: str | None) -> Pixels:
    """Return an image as (height, width, channels), in the numbers in which it came.

    Parameters
    ----------
    value : ndarray, nested lists, or an image of Pillow's
        Height x width, or height x width x channels with 1 (grey) or 3 (colour) channels. Whole
        numbers of 8 or 16 bits without a sign; fractions are taken as they are.
    where : str
        Source, column and row, for the message.
    site : str or None

    Raises
    ------
    DataError
        If it is no image of 4 to 4096 pixels a side, has other channels, or a number that is not
        finite, or whole numbers of a range that nobody can know.
    """
    image = _array(value, "an image", where, site)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or image.shape[2] not in CHANNELS:
        raise DataError(
            f"{where}: expected an image of height x width, or of height x width x channels with 1 "
            f"or 3 channels, got {_shape(image)}; put the channels last, and convert others",
            site=site,
        )
    height, width, _ = image.shape
    if not LEAST_SIDE <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
        raise DataError(
            f"{where}: expected {LEAST_SIDE} to {LARGEST_SIDE} pixels a side, got {height} x "
            f"{width}; cut or resize the images",
            site=site,
        )
    if image.dtype == bool:
        return image.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(image.dtype, np.floating):
        # What a photon count or a Hounsfield number means is the site's to say, not ours to guess.
        with np.errstate(over="ignore"):
            narrow = image.astype(np.float32)
        if not np.isfinite(narrow).all():
            raise DataError(
                f"{where}: expected finite numbers, got NaN or one beyond float32 among "
                f"{image.size}; correct or remove the image",
                site=site,
            )
        return narrow
    if image.dtype not in (np.uint8, np.uint16):
        if image.min() < 0 or image.max() > 255:
            raise DataError(
                f"{where}: expected whole numbers of 8 or 16 bits without a sign, got "
                f"{image.dtype} below 0 or above 255; store uint8 or uint16, or fractions 0 to 1",
                site=site,
            )
        image = image.astype(np.uint8)
    return image


def read_mask(value: Any, image: Pixels, where: str, site: str | None) -> NDArray[np.uint8]:
    """Return a mask (height, width) of class numbers that fits its image.

    Raises
    ------
    DataError
        If it has another size, or holds something other than whole numbers from 0 to 254.
    """
    mask = _array(value, "a mask", where, site)
    if mask.ndim == 3 and mask.shape[2] == 1:
        mask = mask[:, :, 0]
    if mask.shape != image.shape[:2]:
        raise DataError(
            f"{where}: expected a mask of the image's {image.shape[0]} x {image.shape[1]} pixels, "
            f"got {_shape(mask)}; a mask has one number a pixel",
            site=site,
        )
    if mask.dtype != bool and not np.issubdtype(mask.dtype, np.integer):
        raise DataError(
            f"{where}: expected the numbers of classes, got {mask.dtype}; store whole numbers "
            "from 0 (the background)",
            site=site,
        )
    if int(mask.min()) < 0 or int(mask.max()) >= MOST_CLASSES:
        raise DataError(
            f"{where}: expected the numbers of classes, 0 to {MOST_CLASSES - 1}, got one outside; "
            "number the classes from 0 (the background)",
            site=site,
        )
    return mask.astype(np.uint8)


def to_unit(image: Pixels) -> NDArray[np.float32]:
    """Return an image in float32: whole numbers over the largest that their format has."""
    if np.issubdtype(image.dtype, np.integer):
        return (image / np.float32(np.iinfo(image.dtype).max)).astype(np.float32)
    return np.asarray(image, np.float32)


def pixel_digest(pixels: Pixels) -> str:
    """SHA-256 of a size, the kind of numbers and the numbers, in hexadecimal digits."""
    plain = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False))
    head = f"{pixels.dtype.name} {pixels.shape} ".encode()
    return hashlib.sha256(head + plain.tobytes()).hexdigest()


def _array(value: Any, what: str, where: str, site: str | None) -> Pixels:
    got = kind(value)
    if isinstance(value, np.ndarray | list | tuple) or hasattr(value, "__array_interface__"):
        try:
            found = np.asarray(value)
        except (ValueError, OverflowError, OSError):  # rows of several lengths, a damaged file
            got = "rows of several lengths, or nothing that can be read"
        else:
            if found.size and found.dtype.kind in "buif":
                return found
            got = "something other than numbers" if found.size else "nothing"
    raise DataError(
        f"{where}: expected {what} (rows of numbers), got {got}; correct or remove the row",
        site=site,
    )


def _shape(array: Pixels) -> str:
    return _WORDS.get(array.ndim) or " x ".join(map(str, array.shape))
