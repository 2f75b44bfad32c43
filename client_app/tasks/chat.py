"""Conversations as tokens: the tokenizer's chat template, or a plain one where it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.errors import ConfigError, DataError

Messages = Sequence[Mapping[str, str]]


class ChatFormat:
    """Writes what a language model is asked, up to where its answer begins.

    Without a chat template every message is ``User:``, a line break, its content and an empty line
    (``System:`` and ``Assistant:`` alike); then come ``Assistant:`` and a line break. The beginning
    of text token stands before it if the tokenizer has one.

    Parameters
    ----------
    tokenizer : transformers tokenizer

    Raises
    ------
    ConfigError
        If it has no end of text token, without which an answer has no end.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                "the tokenizer of model.source has no eos_token, by which a causal-lm ends its "
                "answer; name one in its tokenizer_config.json, or choose another base model"
            )
        self.end: int = int(tokenizer.eos_token_id)

    def prompts(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Return the tokens of each conversation and of the beginning of the answer to it.

        Raises
        ------
        DataError
            If the template does not take a conversation's sequence of roles.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            begin = self.tokenizer.bos_token_id
            start = [] if begin is None else [int(begin)]
            return [start + ids for ids in self.tokens(list(map(plain, conversations)))]
        return self.tokens([self._templated(messages) for messages in conversations])

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts, without any that the tokenizer adds by itself."""
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts),
            padding=False,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # else a warning for every text that the model could not take whole
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _templated(self, messages: Messages) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except TemplateError:  # its text is the template's, and may quote the record
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                "the chat template of the base model does not take a conversation of the roles "
                f"{roles:.200}; expected as a rule user and assistant in turn, the system first"
            ) from None
        return text


def plain(messages: Messages) -> str:
    """Write a conversation without a template, see `ChatFormat`."""
    turns = [f"{turn['role'].capitalize()}:\n{turn['content']}\n\n" for turn in messages]
    return f"{''.join(turns)}Assistant:\n"
