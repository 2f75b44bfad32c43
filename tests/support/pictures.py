"""Small images whose answer can be seen: a bright square in one of four corners, and its mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.data import SiteData

LABELS = ["top left", "top right", "bottom left", "bottom right"]
CLASSES = ["background", "square"]
TASKS = {"image-classification": LABELS, "image-segmentation": CLASSES}
NETS = {"image-classification": "embedded:tiny-cnn", "image-segmentation": "embedded:tiny-unet"}
SIDE = 8


def pictures(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]]:
    """Return images (n, 8, 8), their masks and the numbers of the corners."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 60, (count, SIDE, SIDE)).astype(np.uint8)
    masks = np.zeros_like(images)
    corners = [int(corner) for corner in rng.permutation(count) % 4]
    for mask, corner in zip(masks, corners, strict=True):
        row, column = divmod(corner, 2)
        mask[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1
    return images + 180 * masks, masks, corners


def records(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return records of a task as a site holds them."""
    images, masks, corners = pictures(count, seed)
    answers = corners if task == "image-classification" else masks
    name = "label" if task == "image-classification" else "mask"
    return [
        {"image": image[:, :, None], name: answer}
        for image, answer in zip(images, answers, strict=True)
    ]


def site_data(task: str, site: str = "north", seed: int = 0, count: int = 24) -> SiteData:
    """Return the records of a site."""
    made = records(task, count, seed)
    splits = {"train": made[:-8], "validation": made[-8:-4], "test": made[-4:]}
    return SiteData(site, list(TASKS[task]), splits, task=task)


def save_pictures(path: Path, sites: list[str], each: int = 20, **changes: Any) -> Path:
    """Write an npz file with images, corners, masks and sites; ``changes`` replace arrays."""
    images, masks, corners = pictures(each * len(sites))
    arrays = {
        "image": images,
        "mask": masks,
        "label": np.array([LABELS[corner] for corner in corners]),
        "site": np.repeat(np.array(sites), each),
    }
    np.savez(path, **{**arrays, **changes})
    return path
