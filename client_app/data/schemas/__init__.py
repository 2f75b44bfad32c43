"""What a task reads of a row: one schema a task, found by the value of `model.task`."""

from __future__ import annotations

import importlib

from client_app.data.schemas.base import Example, Record, Schema

__all__ = ["SCHEMAS", "Example", "Record", "Schema", "schema_class"]

SCHEMAS: dict[str, str] = {
    "sequence-classification": "client_app.data.schemas.classification:ClassificationSchema",
    "causal-lm": "client_app.data.schemas.instruction:InstructionSchema",
    "multiple-choice": "client_app.data.schemas.multiple_choice:MultipleChoiceSchema",
    "image-classification": "client_app.data.schemas.images:ImageClassificationSchema",
    "image-segmentation": "client_app.data.schemas.images:SegmentationSchema",
}


def schema_class(task: str) -> type[Schema]:
    """Return the schema of a task; it is made with ``config.data``."""
    module, _, name = SCHEMAS[task].partition(":")
    kind: type[Schema] = getattr(importlib.import_module(module), name)
    return kind
