"""Greedy answers in batches: padded on the left, ended as soon as every row has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def generate(
    model: Any,
    prompts: Sequence[Tensor],
    *,
    most: int,
    batch_size: int,
    end: int,
    pad: int,
    device: torch.device,
) -> list[list[int]]:
    """Return the most likely continuation of every prompt, token by token.

    Parameters
    ----------
    model
        A transformers model that can generate, in evaluation mode. What its ``generation_config``
        asks for besides (sampling, penalties) is not done; where it knows further tokens that end
        an answer, they do.
    prompts : sequence of int Tensor, shape (tokens,)
        None is empty.
    most : int
        Most tokens of an answer.
    batch_size : int
    end, pad : int
        Tokens.
    device : torch.device

    Returns
    -------
    list of list of int
        Without the token that ended it.
    """
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    answers: dict[int, list[int]] = {}
    with _plain(model, end, pad) as ends:
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            rows = [prompts[number] for number in numbers]
            longest = max(map(len, rows))
            ids = torch.full((len(rows), longest), pad, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for place, row in enumerate(rows):
                ids[place, longest - len(row) :] = row
                mask[place, longest - len(row) :] = 1
            written = model.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), max_new_tokens=most
            )
            for number, tokens in zip(numbers, written[:, longest:].tolist(), strict=True):
                answers[number] = _until(tokens, ends)
    return [answers[number] for number in range(len(prompts))]


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` evenly spaced items, always the same ones; 0 keeps all."""
    if not most or len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


@contextmanager
def _plain(model: Any, end: int, pad: int) -> Iterator[set[int]]:
    """Let the model decode greedily for a while; yields the tokens that end an answer.

    transformers fills whatever a call leaves open from the model's own settings, so those are
    replaced.
    """
    from transformers import GenerationConfig

    before = model.generation_config
    own = before.eos_token_id
    ends = {end, *([own] if isinstance(own, int) else own or [])}
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, num_beams=1, use_cache=True, eos_token_id=sorted(ends), pad_token_id=pad
    )
    try:
        yield ends
    finally:
        model.generation_config = before


def _until(tokens: list[int], ends: set[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[:place]
    return tokens
