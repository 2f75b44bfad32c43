"""Multiple choice with a decoder: the likelihood of each choice behind the context, by length."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client_app.tasks.base import Batch, Record
from client_app.tasks.choice_layout import lay_out, sees
from client_app.tasks.choice_pairs import tokenise
from client_app.tasks.choice_room import room_for_context
from client_app.tasks.choice_scores import ChoiceScores, offered, score_matrix
from client_app.tasks.token_likelihood import token_log_likelihoods
from fedapp.config import RunConfig
from fedapp.errors import DataError

# Decoders that take any attention mask and any positions, and whose logits are the output layer
# of the last hidden states: a test compares each with separate passes. Others take more time.
SHARING = ("gpt2", "gpt_neox", "llama", "qwen2", "qwen3")


class DecoderChoice:
    """Implements `client_app.tasks.base.Task` without a new head.

    The score of a choice is the mean log-likelihood of its tokens behind ``context + " "``, or,
    as `model.choice_length` says, its log-likelihood by character: the ``acc_norm`` of EleutherAI's
    evaluation harness, by which HellaSwag is reported. Training minimises the cross entropy of the
    softmax over these scores: the length-normalised loss of T-Few (arXiv 2205.05638, section 3.2).

    Parameters
    ----------
    config : RunConfig
        ``model.max_length`` and ``model.choice_length``.
    tokenizer : transformers tokenizer
    settings : transformers configuration
        Of the base model.
    """

    peft_task_type = "CAUSAL_LM"

    def __init__(self, config: RunConfig, tokenizer: Any, settings: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.share = settings.model_type in SHARING
        pad = tokenizer.pad_token_id  # any token does behind the mask
        self.pad_id = int(tokenizer.eos_token_id or 0) if pad is None else int(pad)
        begin = tokenizer.bos_token_id
        whole = tokenise(tokenizer, ["a"], special=True)[0]
        # Put before every text where the tokenizer does so by itself.
        self.start = [int(begin)] if begin is not None and whole[0] == begin else []

    def load_base_model(self, path: str, **options: Any) -> nn.Module:
        """Load the pre-trained weights."""
        from transformers import AutoModelForCausalLM

        model: nn.Module = AutoModelForCausalLM.from_pretrained(path, **options)
        return model

    def heads(self, model: nn.Module) -> list[str]:
        """None: the model's own output layer gives the likelihoods."""
        return []

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Tokenise once; items hold ``context`` (int32) and ``choices``, a list of such.

        Where context and longest choice exceed ``model.max_length`` tokens the context loses its
        beginning, and the item says so in ``cut``. ``units`` are the lengths that the
        log-likelihoods are divided by. ``length`` is the number of tokens that the model sees.

        Raises
        ------
        DataError
            If a choice leaves no room for its context.
        """
        contexts = [record["context"].rstrip() for record in records]
        heads = tokenise(self.tokenizer, contexts)
        texts = [
            f"{context} {choice.strip()}"
            for context, record in zip(contexts, records, strict=True)
            for choice in record["choices"]
        ]
        wholes = iter(tokenise(self.tokenizer, texts))
        return [
            self._item(record, head, [next(wholes) for _ in record["choices"]])
            for record, head in zip(records, heads, strict=True)
        ]

    def _item(self, record: Record, head: list[int], wholes: list[list[int]]) -> dict[str, Any]:
        # Where a tokenizer joins the context's end with a choice, its last tokens count as choice.
        same = itertools.takewhile(
            lambda tokens: len(set(tokens)) == 1, zip(head, *wholes, strict=False)
        )
        context = [tokens[0] for tokens in same]
        choices = [whole[len(context) :] for whole in wholes]
        if not context or not all(choices):
            raise DataError(
                f"the tokenizer makes no token of a {'choice' if context else 'context'}: expected "
                "text in the model's language; correct or remove the row"
            )
        room = room_for_context(choices, len(self.start), self.config.model.max_length)
        kept = self.start + context[max(0, len(context) - room) :]
        by_token = self.config.model.choice_length == "tokens"
        units = [
            float(len(tokens) if by_token else len(text.strip()))
            for tokens, text in zip(choices, record["choices"], strict=True)
        ]
        count = sum(map(len, choices)) + len(kept) * (1 if self.share else len(choices))
        return {
            "context": torch.tensor(kept, dtype=torch.int32),
            "choices": [torch.tensor(choice, dtype=torch.int32) for choice in choices],
            "units": units,
            "length": count,
            "label": int(record["label"]),
            "cut": len(context) > room,
        }

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Lay out the questions and pad on the right.

        Returns
        -------
        dict of str to Tensor
            What `lay_out` returns; ``units`` (choices of all questions,), fp32; ``offered``
            (questions, most choices), bool; ``labels`` (questions,), int64.
        """
        return lay_out(items, self.pad_id, share=self.share) | {
            "units": torch.tensor([unit for item in items for unit in item["units"]]),
            "offered": offered([len(item["choices"]) for item in items]),
            "labels": torch.tensor([item["label"] for item in items], dtype=torch.int64),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy of the softmax over each question's scores."""
        return cross_entropy(self.output(model, batch), batch["labels"])

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scores of shape (questions, most choices) in fp32, -inf where there is no choice."""
        logs_t = self._shared(model, batch) if self.share else self._separate(model, batch)
        sums_p = torch.zeros_like(batch["units"]).index_add(0, batch["owners"], logs_t)
        return score_matrix(sums_p / batch["units"], batch["offered"])

    def _shared(self, model: nn.Module, batch: Batch) -> Tensor:
        inner: Any = model
        if hasattr(inner, "get_base_model"):  # PEFT's wrapper; the pairs are inside the model
            inner = inner.get_base_model()
        mask = sees(batch["segments"])
        if inner.config._attn_implementation != "sdpa":  # the eager one adds the mask
            mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        hidden_rth = inner.base_model(
            input_ids=batch["input_ids"],
            attention_mask=mask,
            position_ids=batch["position_ids"],
            use_cache=False,
        ).last_hidden_state
        hidden_th = hidden_rth.flatten(0, 1)[batch["predictors"]]
        head: nn.Module = inner.get_output_embeddings()
        return token_log_likelihoods(head, hidden_th, batch["targets"], inner.config.vocab_size)

    def _separate(self, model: nn.Module, batch: Batch) -> Tensor:
        seen = (batch["segments"] >= 0).long()
        logits_rtv = model(input_ids=batch["input_ids"], attention_mask=seen).logits
        logits_tv = logits_rtv.flatten(0, 1)[batch["predictors"]]
        return -cross_entropy(logits_tv.float(), batch["targets"], reduction="none")

    def scores(self, device: torch.device) -> ChoiceScores:
        """A fresh accumulator."""
        return ChoiceScores()

    def last_layer(self, model: nn.Module) -> nn.Module:
        """Return the output layer."""
        inner: Any = model
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        layer: nn.Module = inner.get_output_embeddings()
        return layer

    def counted(self, batch: Batch, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The places from which tokens of choices are predicted."""
        valid = torch.ones(shape, dtype=torch.bool)
        if len(shape) == 2:  # a row a choice: the output layer answers for contexts too
            valid = torch.zeros(shape[0] * shape[1], dtype=torch.bool)
            valid[batch["predictors"].cpu()] = True
            valid = valid.reshape(shape)
        return valid, batch["targets"]
