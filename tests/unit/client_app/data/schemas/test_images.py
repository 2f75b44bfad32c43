"""Images of a site: what is read, and every bad one as a sentence that shows no pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from pictures import CLASSES, LABELS, SIDE, pictures, save_pictures
from PIL import Image as Pillow

from client_app.data import load_site, load_sites
from client_app.data.schemas.images import ImageSchema, SegmentationSchema
from client_app.data.schemas.pixels import pixel_digest, read_image, read_mask, to_unit
from client_app.data_digest import data_digest
from fedapp.config import DataSection, RunConfig
from fedapp.errors import ConfigError, DataError

SITES = ["north", "south"]


def config_of(path: Path, task: str = "image-classification", **flat: Any) -> RunConfig:
    labels = {"data.labels": CLASSES} if task == "image-segmentation" else {}
    given = {"model.task": task, "data.source": str(path), **labels, **flat}
    return RunConfig.from_flat(
        {key: ",".join(v) if isinstance(v, list) else v for key, v in given.items()}
    )


def test_an_npz_file_is_read_whole(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", SITES)
    images, masks, corners = pictures(40)

    labelled = load_sites(config_of(path))
    masked = load_sites(config_of(path, "image-segmentation"))

    assert list(labelled) == list(masked) == SITES
    assert labelled["north"].label_map == sorted(LABELS)
    assert masked["north"].label_map == CLASSES
    by_content = {pixel_digest(image[:, :, None]): row for row, image in enumerate(images)}
    for data in labelled.values():
        for record in (record for records in data.splits.values() for record in records):
            row = by_content[ImageSchema.content(record)]
            assert data.label_map[record["label"]] == LABELS[corners[row]]
    for data in masked.values():
        for record in (record for records in data.splits.values() for record in records):
            row = by_content[ImageSchema.content(record)]
            assert np.array_equal(record["mask"], masks[row])
            assert "label" not in record


def test_lists_in_json_and_pictures_in_a_datasets_folder_are_the_same_records(
    tmp_path: Path,
) -> None:
    images, _, corners = pictures(20)
    rows = [
        {"image": image.tolist(), "label": LABELS[corner], "site": "north"}
        for image, corner in zip(images, corners, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    features = Features(
        {"image": Image(), "label": ClassLabel(names=LABELS), "site": Value("string")}
    )
    pixels = [{**row, "image": Pillow.fromarray(i)} for row, i in zip(rows, images, strict=True)]
    Dataset.from_list(pixels, features=features).save_to_disk(tmp_path / "folder")
    path = save_pictures(tmp_path / "a.npz", ["north"])

    digests = {
        data_digest(load_site(config_of(source), "north"))
        for source in (path, tmp_path / "a.jsonl", tmp_path / "folder")
    }

    assert len(digests) == 1


def test_a_damaged_picture_is_one_sentence(tmp_path: Path) -> None:
    features = Features({"image": Image(), "label": Value("int64"), "site": Value("string")})
    rows = [{"image": {"bytes": b"no picture", "path": None}, "label": 0, "site": "north"}]
    Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "folder")

    with pytest.raises(DataError, match=r"folder, column 'image': a picture cannot be read"):
        load_sites(config_of(tmp_path / "folder"))


BLACK = np.zeros((SIDE, SIDE), np.uint8)
IMAGES: dict[str, tuple[Any, str]] = {
    "text": ("Maria", "expected an image (rows of numbers), got text"),
    "nothing": (None, "got nothing"),
    "one number": (np.uint8(3), "got one number; put"),
    "a row": (np.zeros(64, np.uint8), "got a row of numbers"),
    "channels first": (np.zeros((3, 8, 8), np.uint8), "got 3 x 8 x 8; put the channels last"),
    "four channels": (np.zeros((8, 8, 4), np.uint8), "with 1 or 3 channels, got 8 x 8 x 4"),
    "a film": (np.zeros((2, 8, 8, 3), np.uint8), "got 2 x 8 x 8 x 3"),
    "tiny": (np.zeros((3, 8), np.uint8), "expected 4 to 4096 pixels a side, got 3 x 8"),
    "huge": (np.zeros((4, 5000), np.uint8), "got 4 x 5000"),
    "empty": (np.zeros((0, 8), np.uint8), "got nothing"),
    "NaN": (np.full((8, 8), np.nan), "expected finite numbers, got NaN"),
    "infinite": (np.full((8, 8), np.inf, np.float32), "expected finite numbers"),
    "beyond float32": (np.full((8, 8), 1e300), "expected finite numbers"),
    "negative": (np.full((8, 8), -1, np.int16), "got int16 below 0 or above 255"),
    "deep": (np.full((8, 8), 300, np.int64), "got int64 below 0 or above 255"),
    "complex": (np.zeros((8, 8), complex), "got something other than numbers"),
    "texts": ([["a"] * 8] * 8, "got something other than numbers"),
    "ragged": ([[1] * 8, [1] * 7] * 4, "got rows of several lengths"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_a_bad_image_is_refused(name: str) -> None:
    value, sentence = IMAGES[name]

    with pytest.raises(DataError) as caught:
        read_image(value, "a.npz, column 'image', row 3", "north")

    assert str(caught.value).startswith("site north: a.npz, column 'image', row 3: expected")
    assert sentence in str(caught.value)
    assert "Maria" not in str(caught.value)


MASKS: dict[str, tuple[Any, str]] = {
    "another size": (np.zeros((8, 9), np.uint8), "a mask of the image's 8 x 8 pixels, got 8 x 9"),
    "colours": (np.zeros((8, 8, 3), np.uint8), "got 8 x 8 x 3; a mask has one number a pixel"),
    "fractions": (np.zeros((8, 8)), "expected the numbers of classes, got float64"),
    "negative": (np.full((8, 8), -1, np.int16), "0 to 254, got one outside"),
    "ignored": (np.full((8, 8), 255, np.uint8), "0 to 254, got one outside"),
    "text": ("x", "expected a mask (rows of numbers), got text"),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_does_not_fit_is_refused(name: str) -> None:
    value, sentence = MASKS[name]

    with pytest.raises(DataError) as caught:
        read_mask(value, BLACK[:, :, None], "row 3", None)

    assert sentence in str(caught.value)


def test_numbers_of_every_kind_come_to_one_scale() -> None:
    grey = np.array([[0, 51, 255, 0]] * 4)
    for image in (grey.astype(np.uint8), grey, grey.astype(np.int16), grey.tolist()):
        read = to_unit(read_image(image, "", None))
        np.testing.assert_allclose(read[0, :, 0], [0, 0.2, 1, 0], rtol=1e-6)
    deep = to_unit(read_image((grey * 257).astype(np.uint16), "", None))
    np.testing.assert_allclose(deep[0, :, 0], [0, 0.2, 1, 0], rtol=1e-6)
    fractions = read_image(np.full((4, 4, 3), -1.5), "", None)
    assert np.array_equal(to_unit(fractions), np.full((4, 4, 3), -1.5, np.float32))
    assert to_unit(read_image(grey > 0, "", None))[0, :, 0].tolist() == [0, 1, 1, 0]


def test_images_of_several_sizes_are_the_problem_of_their_site(tmp_path: Path) -> None:
    images, _, _ = pictures(40)
    rows = [
        {
            "image": (image if row < 30 else image[:, :7]).tolist(),
            "label": row % 2,
            "site": SITES[row // 20],
        }
        for row, image in enumerate(images)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))

    assert load_site(config_of(path), "north").site == "north"
    with pytest.raises(DataError) as caught:
        load_site(config_of(path), "south")
    assert str(caught.value) == (
        "site south: a.jsonl, row 31: expected an image of 8 x 8 pixels and 1 channel as in row 1, "
        "got 8 x 7 pixels and 1 channel; cut or resize the images to one size"
    )
    with pytest.raises(DataError, match="row 31: expected an image of 8 x 8"):
        load_sites(config_of(path, **{"data.partition": "iid"}))


def test_classes_without_a_name_are_the_problem_of_their_site(tmp_path: Path) -> None:
    _, masks, _ = pictures(40)
    masks[25, 0, 0] = 2
    path = save_pictures(tmp_path / "a.npz", SITES, mask=masks)

    assert load_site(config_of(path, "image-segmentation"), "north").label_map == CLASSES
    with pytest.raises(DataError, match=r"row 26: expected a mask of the classes 0 to 1.*class 2"):
        load_site(config_of(path, "image-segmentation"), "south")


def test_the_classes_of_a_mask_must_have_names(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", SITES)

    with pytest.raises(ConfigError, match=r"data.labels is empty: name the classes of the masks"):
        load_sites(config_of(path, "image-segmentation", **{"data.labels": ""}))


def test_a_label_outside_the_map_names_its_row(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", SITES)

    with pytest.raises(DataError, match=r"is not in data.labels") as caught:
        load_site(config_of(path, **{"data.labels": LABELS[:3]}), "north")
    assert LABELS[3] not in str(caught.value)


def test_the_same_image_twice_is_one_record(tmp_path: Path) -> None:
    images, _, _ = pictures(40)
    images[1] = images[0]
    path = save_pictures(tmp_path / "a.npz", SITES, image=images)

    data = load_site(config_of(path), "north")

    assert sum(map(len, data.splits.values())) == 19
    with pytest.raises(DataError, match="row 2 repeats row 1"):
        load_sites(config_of(path, **{"data.duplicates": "refuse"}))


def test_the_mark_of_a_site_changes_with_a_pixel_of_a_mask(tmp_path: Path) -> None:
    _, masks, _ = pictures(40)
    first = load_site(
        config_of(save_pictures(tmp_path / "a.npz", SITES), "image-segmentation"), "north"
    )
    masks[3, 0, 0] = 1 - masks[3, 0, 0]
    path = save_pictures(tmp_path / "b.npz", SITES, mask=masks)
    second = load_site(config_of(path, "image-segmentation"), "north")

    assert data_digest(first) != data_digest(second)
    assert SegmentationSchema(DataSection()).required() == ["image", "mask"]
