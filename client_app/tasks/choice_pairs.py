"""How a tokenizer joins two texts, so that one of them can be cut without tokenising again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Pieces = list[tuple[int, int]]  # token id, segment


@dataclass(frozen=True)
class PairTemplate:
    """Special tokens around and between two texts, and the segments of the texts.

    Attributes
    ----------
    before, between, after : list of (int, int)
        Token id and segment of every special token.
    segments : (int, int)
        Segment of the first and of the second text's tokens.
    """

    before: Pieces
    between: Pieces
    after: Pieces
    segments: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: Any) -> PairTemplate:
        """Read the template off an example."""
        encoded = tokenizer(
            "a", "a", return_special_tokens_mask=True, return_token_type_ids=True, verbose=False
        )
        special = encoded["special_tokens_mask"]
        pieces = list(zip(encoded["input_ids"], encoded["token_type_ids"], strict=True))
        text = [place for place, mask in enumerate(special) if not mask]
        first, last = text[0], text[-1]
        inner = [pieces[place] for place in range(first, last) if special[place]]
        return cls(pieces[:first], inner, pieces[last + 1 :], (pieces[first][1], pieces[last][1]))

    @property
    def length(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return token ids and segments of the two texts as one input."""
        pieces = [
            *self.before,
            *((token, self.segments[0]) for token in first),
            *self.between,
            *((token, self.segments[1]) for token in second),
            *self.after,
        ]
        return [token for token, _ in pieces], [segment for _, segment in pieces]


def tokenise(tokenizer: Any, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
    """Return the token ids of every text, uncut; a text that repeats is tokenised once."""
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return []
    encoded = tokenizer(
        distinct,
        add_special_tokens=special,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # else a warning for every text that the model could not take whole
    )
    ids = dict(zip(distinct, encoded["input_ids"], strict=True))
    return [ids[text] for text in texts]
