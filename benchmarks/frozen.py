"""An encoder that is trained in its last layer alone: what cannot change is computed once a record.

Not a benchmark itself. Exact to rounding, for a BERT whose head reads the first token: the layers
below are frozen, so that what they make of a record is always the same; and of the last layer's
outputs only the first is read, so that only it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence


class Remembered(nn.Module):
    """In place of the embeddings and lower layers of a BERT: looks up what they made of a record.

    Parameters
    ----------
    embeddings : nn.Module
    layers : sequence of nn.Module
        Frozen.
    """

    def __init__(self, embeddings: nn.Module, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        # A list keeps `train` and `named_parameters` of the whole model away from them.
        self._frozen = [embeddings.eval(), *(layer.eval() for layer in layers)]
        self._known: dict[bytes, Tensor] = {}
        self.lengths: list[int] = []  # of the records that come next

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        """Return the states (records, longest, width) under the last layer; 0 behind a record."""
        rows = zip(input_ids, self.lengths, strict=True)
        return pad_sequence([self._states(ids[:length]) for ids, length in rows], batch_first=True)

    def _states(self, ids: Tensor) -> Tensor:
        key = ids.numpy().tobytes()
        if key not in self._known:
            embeddings, *layers = self._frozen
            with torch.no_grad():
                states = embeddings(input_ids=ids[None])
                for layer in layers:
                    states = layer(states)
            self._known[key] = states[0]
        return self._known[key]


class FirstToken(nn.Module):
    """A layer of a BERT that makes the first token's output alone: (records, 1, width).

    Parameters
    ----------
    layer : nn.Module
        The whole layer, with whatever pairs its linear layers have.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Tensor:
        """As the layer; of the mask (records, 1, tokens, tokens) the first row counts."""
        attention, first = self.layer.attention.self, states[:, :1]
        size = (len(states), -1, attention.num_attention_heads, attention.attention_head_size)
        query, key, value = (
            project(given).view(size).transpose(1, 2)
            for project, given in (
                (attention.query, first), (attention.key, states), (attention.value, states)
            )
        )  # fmt: skip
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        seen = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=attention.scaling
        )
        joined = seen.transpose(1, 2).reshape(first.shape)
        made: Tensor = self.layer.feed_forward_chunk(self.layer.attention.output(joined, first))
        return made


def train_last_layer(model: nn.Module) -> None:
    """Let a BERT for sequence classification compute what can change alone; takes dropout out.

    Raises
    ------
    ValueError
        If anything below the last layer is to be trained.
    """
    bert: Any = next(m for m in model.modules() if type(m).__name__ == "BertModel")
    if isinstance(bert.embeddings, Remembered):
        return  # a resident that was used before
    *lower, last = bert.encoder.layer
    below = [bert.embeddings, *lower]
    if any(p.requires_grad for module in below for p in module.parameters()):
        raise ValueError("something below the last layer is to be trained")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    remembered = Remembered(bert.embeddings, lower)

    def count(_: nn.Module, args: Any, kwargs: Any) -> None:
        remembered.lengths = kwargs["attention_mask"].sum(dim=1).tolist()

    bert.register_forward_pre_hook(count, with_kwargs=True)
    bert.embeddings = remembered
    bert.encoder.layer = nn.ModuleList([FirstToken(last)])
