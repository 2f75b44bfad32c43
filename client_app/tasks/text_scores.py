"""Generated texts against reference texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from torchmetrics.functional.text import rouge_score


def exact_match(texts: Sequence[str], references: Sequence[str]) -> float:
    """Share of the texts that are the reference; the spacing does not matter."""
    pairs = zip(texts, references, strict=True)
    return fmean(float(text.split() == reference.split()) for text, reference in pairs)


def rouge_l(texts: Sequence[str], references: Sequence[str]) -> float:
    """Mean ROUGE-L, an F score of the longest common subsequence of words (Lin, 2004).

    Words are runs of letters and digits in lower case, not stemmed. Of English text the score is
    that of Google's ``rouge_score``; that one takes letters outside a to z for blanks.
    """
    values = [
        float(
            rouge_score(
                text, reference, rouge_keys="rougeL", normalizer=_normal, tokenizer=str.split
            )["rougeL_fmeasure"]
        )
        for text, reference in zip(texts, references, strict=True)
    ]
    return fmean(values)


def _normal(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower())
