"""An image and what is to be said of it: one label, or a mask with a class a pixel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from client_app.data.schemas.base import Example, Schema, Where
from client_app.data.schemas.pixels import pixel_digest, read_image, read_mask
from client_app.data.schemas.values import read_category


class ImageSchema(Schema):
    """What both have in common: column ``data.image-column``; the image identifies the record."""

    @staticmethod
    def content(record: Mapping[str, Any]) -> str:
        """A digest of the image: with another answer it is the same record."""
        return pixel_digest(record["image"])

    @classmethod
    def check(
        cls, examples: Sequence[Example], label_map: Sequence[str]
    ) -> Iterator[tuple[int, str]]:
        """Find images of another size than the first: a batch is one block of numbers."""
        first = examples[0].fields["image"].shape
        for row, example in enumerate(examples):
            shape = example.fields["image"].shape
            if shape != first:
                yield (
                    row,
                    f"expected an image of {_size(first)} as in row 1, got {_size(shape)}; "
                    "cut or resize the images to one size",
                )


class ImageClassificationSchema(ImageSchema):
    """Columns ``data.image-column`` and ``data.label-column``."""

    labelled = True
    settings = ("data.image-column", "data.label-column")

    def required(self) -> list[str]:
        """The two columns."""
        return [self.data.image_column, self.data.label_column]

    def parse(self, values: Mapping[str, Any], where: Where, site: str | None) -> Example:
        """Read one row, see `Schema`."""
        column, label_column = self.required()
        image = read_image(values[column], where(column), site)
        label = read_category(values[label_column], where(label_column), site, "a label")
        return labelled_image(image, label)

    @classmethod
    def marks(cls, record: Mapping[str, Any], label_map: Sequence[str]) -> list[str]:
        """Image and label."""
        return [cls.content(record), label_map[record["label"]]]


class SegmentationSchema(ImageSchema):
    """Columns ``data.image-column`` and ``data.mask-column``.

    A mask holds a class number for every pixel: 0 is the first name in ``data.labels``, the
    background, 1 the second, and so on.
    """

    names_classes = True
    settings = ("data.image-column", "data.mask-column")

    def required(self) -> list[str]:
        """The two columns, and the stratum if one is named."""
        return [self.data.image_column, self.data.mask_column, *self._stratum_columns()]

    def parse(self, values: Mapping[str, Any], where: Where, site: str | None) -> Example:
        """Read one row, see `Schema`."""
        column, mask_column = self.data.image_column, self.data.mask_column
        image = read_image(values[column], where(column), site)
        mask = read_mask(values[mask_column], image, where(mask_column), site)
        return masked_image(image, mask, self._stratum(values, where, site))

    @classmethod
    def check(
        cls, examples: Sequence[Example], label_map: Sequence[str]
    ) -> Iterator[tuple[int, str]]:
        """Find sizes that differ, and masks with more classes than have names."""
        yield from super().check(examples, label_map)
        for row, example in enumerate(examples):
            largest = int(example.fields["mask"].max())
            if largest >= len(label_map):
                yield (
                    row,
                    f"expected a mask of the classes 0 to {len(label_map) - 1}, which data.labels "
                    f"names, got class {largest}; name it there, or correct the mask",
                )

    @classmethod
    def marks(cls, record: Mapping[str, Any], label_map: Sequence[str]) -> list[str]:
        """Image and mask."""
        return [cls.content(record), pixel_digest(record["mask"])]


def labelled_image(image: np.ndarray[Any, Any], label: str) -> Example:
    """Return the example of an image (height, width, channels) and its label."""
    fields = {"image": image}
    return Example(ImageSchema.content(fields), label, fields)


def masked_image(
    image: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], stratum: str = ""
) -> Example:
    """Return the example of an image (height, width, channels) and its mask (height, width)."""
    fields = {"image": image, "mask": mask}
    return Example(ImageSchema.content(fields), stratum, fields)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]} pixels and {shape[2]} channel{'s' if shape[2] > 1 else ''}"
