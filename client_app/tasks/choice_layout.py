"""How contexts and choices lie in the input of a decoder, and where a choice's tokens are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from client_app.tasks.base import Batch


def lay_out(items: Sequence[Mapping[str, Any]], pad_id: int, *, share: bool) -> Batch:
    """Lay out questions, one row each (the context once, then all choices) or one row a choice.

    Parameters
    ----------
    items : sequence of mapping
        ``context`` and ``choices``: token ids, a tensor and a list of tensors.
    pad_id : int
    share : bool
        Whether the choices of a question share its context, see `sees`.

    Returns
    -------
    dict of str to Tensor
        int64. Of shape (rows, longest): ``input_ids``; ``position_ids``, where every choice starts
        behind the context; ``segments``, 0 for the context, c for choice c of the row, -1 for
        padding. Of shape (tokens of all choices,): ``targets``, the tokens; ``predictors``, the
        place in the flattened rows from which each is predicted; ``owners``, the number of the
        choice it belongs to, counted over the batch.
    """
    rows = [
        (item["context"], choices)
        for item in items
        for choices in ([item["choices"]] if share else [[choice] for choice in item["choices"]])
    ]
    longest = max(len(context) + sum(map(len, choices)) for context, choices in rows)
    ids: list[Tensor] = []
    positions: list[Tensor] = []
    segments: list[Tensor] = []
    predictors: list[Tensor] = []
    lengths: list[int] = []
    for row, (context, choices) in enumerate(rows):
        start, place = len(context), len(context)
        counts = [len(choice) for choice in choices]
        ids.append(torch.cat([context, *choices]))
        behind = [start + torch.arange(count) for count in counts]
        positions.append(torch.cat([torch.arange(start), *behind]))
        segments.append(torch.repeat_interleave(torch.tensor([start, *counts])))  # 0 0 0 1 1 2
        for count in counts:
            # The context's end predicts the first token of each choice.
            before = torch.cat([torch.tensor([start - 1]), torch.arange(place, place + count - 1)])
            predictors.append(row * longest + before)
            place += count
        lengths += counts
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id).long(),
        "position_ids": pad_sequence(positions, batch_first=True),
        "segments": pad_sequence(segments, batch_first=True, padding_value=-1),
        "predictors": torch.cat(predictors),
        "targets": torch.cat([choice for _, choices in rows for choice in choices]).long(),
        "owners": torch.repeat_interleave(torch.tensor(lengths)),
    }


def sees(segments_rt: Tensor) -> Tensor:
    """Return which token may look at which: back, at the context and at its own choice.

    So the choices of one row know nothing of each other, as if each stood alone behind the context.

    Parameters
    ----------
    segments_rt : Tensor, shape (rows, tokens)

    Returns
    -------
    bool Tensor, shape (rows, 1, tokens, tokens)
    """
    own = segments_rt[:, :, None] == segments_rt[:, None, :]
    context = (segments_rt == 0)[:, None, :]
    tokens = torch.arange(segments_rt.shape[1], device=segments_rt.device)
    back = tokens[:, None] >= tokens[None, :]
    # Padding looks at itself: a token that sees nothing has no softmax.
    return ((own | context) & back)[:, None]
