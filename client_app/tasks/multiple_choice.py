"""Which of several texts goes with a context; the kind of base model decides how it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from client_app.sources import ModelSource, short_name
from client_app.tasks.multiple_choice_decoder import DecoderChoice
from client_app.tasks.multiple_choice_encoder import EncoderChoice
from fedapp.config import RunConfig
from fedapp.errors import ConfigError


def multiple_choice(
    config: RunConfig, label_map: Sequence[str], tokenizer: Any, source: ModelSource
) -> EncoderChoice | DecoderChoice:
    """Return the task for a base model: a head on an encoder, likelihoods of a decoder.

    Parameters
    ----------
    config : RunConfig
    label_map : sequence of str
        Not used: a choice has no name.
    tokenizer : transformers tokenizer
    source : ModelSource
        Its ``config.json`` says what the model is.

    Raises
    ------
    ConfigError
        If it is neither, or its settings cannot be read.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
        AutoConfig,
    )

    try:
        settings = AutoConfig.from_pretrained(
            source.path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"model.source {short_name(source.name)}: its config.json cannot be read "
            f"({type(error).__name__}); expected a transformers model folder"
        ) from None
    kind = type(settings)
    # BERT can be loaded as a decoder too, so the encoders are asked first.
    if kind in MODEL_FOR_MULTIPLE_CHOICE_MAPPING and not getattr(settings, "is_decoder", False):
        return EncoderChoice(config, tokenizer, settings)
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        return DecoderChoice(config, tokenizer, settings)
    raise ConfigError(
        f"model.source {short_name(source.name)} is of the kind '{settings.model_type}', which "
        "transformers has neither as an encoder for multiple choice nor as a decoder; "
        "name another base model or another model.task"
    )
