"""Made-up records of every task: what a dry run trains on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedapp.config import RunConfig, Scalar

RECORDS = 60
LABELS = ("no", "yes")
_SIDE = 32  # pixels


def write_records(path: Path, run: RunConfig, site: str) -> dict[str, Scalar]:
    """Write records to ``path`` (JSONL) and return the ``data`` settings that read them."""
    labels = run.data.labels or LABELS
    rows = [{**_record(run.model.task, number, labels), "site": site} for number in range(RECORDS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "source": str(path),
        "site-column": "site",
        **{f"{column}-column": column for column in rows[0] if column != "site"},
    }


def _record(task: str, number: int, labels: tuple[str, ...]) -> dict[str, Any]:
    text = f"made-up record {number} with the value {number % 7}"
    if task == "causal-lm":
        return {"prompt": f"{text}?", "response": f"the value is {number % 7}"}
    if task == "multiple-choice":
        choices = [f"{number % 7}", f"{number % 7 + 1}"]
        return {"context": f"{text}; it is", "choices": choices, "answer": 0}
    if task == "image-classification":
        return {"image": _pixels(number), "label": labels[number % len(labels)]}
    if task == "image-segmentation":
        classes = [[column % len(labels) for column in range(_SIDE)] for _ in range(_SIDE)]
        return {"image": _pixels(number), "mask": classes}
    return {"text": text, "label": labels[number % len(labels)]}


def _pixels(number: int) -> list[list[float]]:
    """Return a grey image that no other number has."""
    return [
        [(row * column + 7 * number) % 256 / 255 for column in range(_SIDE)] for row in range(_SIDE)
    ]
