"""Instruction tuning: a language model learns the responses, not the prompts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client_app.tasks.base import Batch, Record
from client_app.tasks.causal_lm_scores import CausalLMScores, TokenScores
from client_app.tasks.causality import check_causal
from client_app.tasks.chat import ChatFormat
from client_app.tasks.generation import generate, spread
from client_app.tasks.text_scores import exact_match, rouge_l
from fedapp.config import RunConfig, TrainSection

IGNORED = -100
"""Label of what has no part in the loss."""
MOST_LOGITS = 2**26
"""Logits at a time in an evaluation: 256 MiB in fp32."""


class CausalLM:
    """Implements `client_app.tasks.base.Task` for decoders.

    A training sequence is the conversation in the base model's chat template, the response, and
    the end of text token; see `ChatFormat`. The loss is the mean cross entropy of the response's
    tokens and that end over all records of an optimiser step, however they are dealt to batches:
    a long response counts more than a short one, as in one large batch.

    Rows are padded on the left. All responses then end together, so that the output layer, which
    needs most of a small model's memory, only works on as many columns as the longest response has.

    Parameters
    ----------
    config : RunConfig
        ``model.max_length``.
    label_map : list of str
        Not used: there are no labels.
    tokenizer : transformers tokenizer
    """

    peft_task_type = "CAUSAL_LM"

    def __init__(self, config: RunConfig, label_map: Sequence[str], tokenizer: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.chat = ChatFormat(tokenizer)
        pad = tokenizer.pad_token_id  # any token does behind the mask
        self.pad_id: int = self.chat.end if pad is None else int(pad)

    def load_base_model(self, path: str, **options: Any) -> nn.Module:
        """Load the pre-trained weights.

        Raises
        ------
        ConfigError
            If the model is an encoder, whose tokens see those behind them.
        """
        from transformers import AutoModelForCausalLM

        model: nn.Module = AutoModelForCausalLM.from_pretrained(path, **options)
        check_causal(model)
        return model

    def heads(self, model: nn.Module) -> list[str]:
        """None: the model's own output layer is kept."""
        return []

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Tokenise once; a record whose response has no token is left out.

        Returns
        -------
        list of dict
            ``input_ids``: int32, the training sequence of ``length`` tokens, at most
            ``model.max_length``. ``terms``: how many of them, at the end, are response and end of
            text. ``prompt_ids``: int32, the last ``model.max_length`` tokens of the prompt, for
            generation. ``reference``: the response as text. ``cut``: whether the sequence was too
            long. Then the prompt loses its beginning, and a response that alone is too long its
            end; one token of the prompt always stays.
        """
        prompts = self.chat.prompts([record["messages"] for record in records])
        responses = self.chat.tokens([record["response"] for record in records])
        return [
            self._item(prompt, response, str(record["response"]))
            for record, prompt, response in zip(records, prompts, responses, strict=True)
            if response
        ]

    def _item(self, prompt: list[int], response: list[int], reference: str) -> dict[str, Any]:
        longest = self.config.model.max_length
        whole = [*response, self.chat.end]
        answer = whole[: longest - 1]
        kept = prompt[-(longest - len(answer)) :]
        return {
            "input_ids": torch.tensor([*kept, *answer], dtype=torch.int32),
            "length": len(kept) + len(answer),
            "terms": len(answer),
            "prompt_ids": torch.tensor(prompt[-longest:], dtype=torch.int32),
            "reference": reference,
            "cut": len(kept) < len(prompt) or len(answer) < len(whole),
        }

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Pad on the left to the longest item of the batch.

        Returns
        -------
        dict of str to Tensor
            int64. ``input_ids``, ``attention_mask`` and ``position_ids`` of shape (records,
            longest - 1): the last token is only predicted. ``labels`` of shape (records, longest
            response): the token that follows each of the last columns, or `IGNORED`.
        """
        ids = pad_left([item["input_ids"] for item in items], self.pad_id)
        lengths = torch.tensor([item["length"] for item in items])
        terms = torch.tensor([item["terms"] for item in items])
        columns = int(terms.max())
        mask = torch.arange(ids.shape[1], 0, -1) <= lengths[:, None]
        answered = torch.arange(columns, 0, -1) <= terms[:, None]
        return {
            "input_ids": ids[:, :-1],
            "attention_mask": mask[:, :-1].long(),
            "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)[:, :-1],
            "labels": torch.where(answered, ids[:, -columns:], IGNORED),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy over the response tokens of the batch."""
        logits_ntv = self._logits(model, batch)
        return cross_entropy(
            logits_ntv.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=IGNORED
        )

    def output(self, model: nn.Module, batch: Batch) -> TokenScores:
        """Cross entropy and hits of every response token; never more than `MOST_LOGITS` logits."""
        rows, columns = batch["labels"].shape
        vocabulary = _inner(model).config.get_text_config().vocab_size
        size = max(1, MOST_LOGITS // (columns * vocabulary))
        parts = []
        for start in range(0, rows, size):
            part = {name: value[start : start + size] for name, value in batch.items()}
            logits_ntv = self._logits(model, part)
            parts.append(TokenScores.of(logits_ntv, part["labels"], IGNORED))
        return TokenScores.join(parts)

    def scores(self, device: torch.device) -> CausalLMScores:
        """A fresh accumulator."""
        return CausalLMScores()

    def generated(
        self,
        model: nn.Module,
        items: Sequence[Mapping[str, Any]],
        train: TrainSection,
        device: torch.device,
    ) -> dict[str, float]:
        """Let the model answer some of the prompts, greedily, and compare with the responses.

        Parameters
        ----------
        model : nn.Module
            In evaluation mode.
        items : sequence of mapping
            Prepared items of a split; ``train.generate_examples`` of them, evenly spaced, are used.
        train : TrainSection
            ``generate_tokens``, ``generate_examples``, ``eval_batch_size``.
        device : torch.device

        Returns
        -------
        dict of str to float
            ``exact_match`` and ``rouge_l``, means over the ``generated`` records; ``cut_prompts``,
            how many of their prompts lost their beginning so that prompt and answer fit into
            ``model.max_length`` together. Empty with ``generate_tokens`` 0.
        """
        chosen = spread(items, train.generate_examples)
        if not train.generate_tokens or not chosen:
            return {}
        room = self.config.model.max_length - train.generate_tokens
        prompts = [item["prompt_ids"] for item in chosen]
        answers = generate(
            _inner(model),
            [prompt[-room:] for prompt in prompts],
            most=train.generate_tokens,
            batch_size=train.eval_batch_size,
            end=self.chat.end,
            pad=self.pad_id,
            device=device,
        )
        texts = [
            self.tokenizer.decode(answer, skip_special_tokens=True).strip() for answer in answers
        ]
        references = [item["reference"] for item in chosen]
        return {
            "exact_match": exact_match(texts, references),
            "rouge_l": rouge_l(texts, references),
            "generated": float(len(chosen)),
            "cut_prompts": float(sum(len(prompt) > room for prompt in prompts)),
        }

    def last_layer(self, model: nn.Module) -> nn.Module:
        """Return the output layer."""
        layer: nn.Module = _inner(model).get_output_embeddings()
        return layer

    def counted(self, batch: Batch, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The places from which response tokens are predicted."""
        labels_nt = batch["labels"].cpu()
        valid = torch.zeros(shape, dtype=torch.bool)
        valid[:, -labels_nt.shape[1] :] = labels_nt != IGNORED
        return valid, labels_nt[labels_nt != IGNORED]

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of shape (records, longest response, vocabulary): those that `labels` needs."""
        columns = batch["labels"].shape[1]
        inputs: dict[str, Any] = {key: batch[key] for key in ("input_ids", "attention_mask")}
        more = {
            "position_ids": batch["position_ids"],
            "logits_to_keep": columns,
            "use_cache": False,
        }
        # Not every decoder knows all that saves time.
        accepted = inspect.signature(type(_inner(model)).forward).parameters
        inputs |= {key: value for key, value in more.items() if key in accepted}
        logits: Tensor = model(**inputs).logits
        return logits[:, -columns:]


def pad_left(rows: Sequence[Tensor], pad: int) -> Tensor:
    """Return the rows as an int64 matrix, filled up with ``pad`` on the left."""
    longest = max(map(len, rows))
    filled = torch.full((len(rows), longest), pad, dtype=torch.int64)
    for number, row in enumerate(rows):
        filled[number, longest - len(row) :] = row
    return filled


def _inner(model: Any) -> Any:
    """Return the model inside PEFT's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
