"""Where records come from: embedded sets and the user's own files, behind one `Table`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import NamedTuple

from client_app.data.schemas import schema_class
from client_app.data.table import Table
from fedapp.config import RunConfig
from fedapp.errors import ConfigError


class Embedded(NamedTuple):
    """A set that comes with the project: for which task, and the function that reads it."""

    task: str
    reader: str


EMBEDDED: dict[str, Embedded] = {
    "heart": Embedded("sequence-classification", "client_app.data.sources.heart:read_heart"),
    "sentiment": Embedded(
        "sequence-classification", "client_app.data.sources.sentiment:read_sentiment"
    ),
    "instructions": Embedded("causal-lm", "client_app.data.sources.instructions:read_instructions"),
    "choices": Embedded("multiple-choice", "client_app.data.sources.choices:read_choices"),
    "sentiment-choices": Embedded(
        "multiple-choice", "client_app.data.sources.choices_sentiment:read_sentiment_choices"
    ),
    "digits": Embedded("image-classification", "client_app.data.sources.digits:read_digits"),
    "mni": Embedded("image-segmentation", "client_app.data.sources.mni:read_mni"),
}


def read_table(config: RunConfig) -> Table:
    """Read all records of ``data.source`` as ``model.task`` needs them.

    Raises
    ------
    ConfigError
        For an embedded name that does not exist, or that is for another task.
    DataError
        If the source is missing or malformed.
    """
    source, task = config.data.source, config.model.task
    prefix, colon, name = source.partition(":")
    if prefix == "embedded" and colon:
        if name not in EMBEDDED:
            near = difflib.get_close_matches(name, EMBEDDED, n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown data source '{source}'; did you mean 'embedded:{near}'?")
        embedded = EMBEDDED[name]
        if embedded.task != task:
            fitting = [f"embedded:{key}" for key, each in EMBEDDED.items() if each.task == task]
            raise ConfigError(
                f"data.source is '{source}', whose records are for {embedded.task}, but model.task "
                f"is '{task}'; set model.task to {embedded.task}, or data.source to "
                f"{' or '.join(fitting)} or a file of your own"
            )
        module, _, function = embedded.reader.partition(":")
        read: Callable[[], Table] = getattr(importlib.import_module(module), function)
        return read()
    from client_app.data.sources.files import read_files

    return read_files(config.data, schema_class(task)(config.data))
