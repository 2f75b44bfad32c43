"""Is a model a decoder? Asked of the model itself, since many kinds can be loaded as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedapp.errors import ConfigError

_TOKENS = 8
_NOISE = 1e-4  # of rounding, as a share of the change at the token itself


@torch.inference_mode()
def check_causal(model: nn.Module) -> None:
    """Check that another last token changes nothing at the tokens before it.

    An encoder such as BERT can be loaded as a language model, and would then read the answer that
    it is to learn.

    Raises
    ------
    ConfigError
        If a token sees those behind it.
    """
    settings: Any = model.config
    vocabulary = settings.get_text_config().vocab_size
    device = next(model.parameters()).device
    ids = torch.arange(_TOKENS, device=device)[None] % vocabulary
    other = ids.clone()
    other[0, -1] = (_TOKENS + 1) % vocabulary
    one_tv, two_tv = (model(input_ids=each).logits[0].float() for each in (ids, other))
    change_t = (one_tv - two_tv).abs().amax(dim=1)
    if float(change_t[:-1].max()) > _NOISE * float(change_t[-1]):
        raise ConfigError(
            f"the base model ({settings.model_type}) is an encoder, whose tokens see those behind "
            "them; causal-lm needs a decoder such as embedded:smollm2 or embedded:tiny-decoder in "
            "model.source"
        )
