"""Load the tokenizer that belongs to a base model."""

from __future__ import annotations

from typing import Any

from client_app.sources import ModelSource, short_name
from fedapp.errors import ConfigError


def load_tokenizer(source: ModelSource) -> Any:
    """Return the tokenizer in the model's folder.

    Raises
    ------
    ConfigError
        If there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(source.path), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.source {short_name(source.name)}: no usable tokenizer "
            f"({type(error).__name__}); expected a folder with tokenizer.json beside the weights"
        ) from None
