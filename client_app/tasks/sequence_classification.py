"""One label for a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from client_app.tasks.base import Batch, Record
from client_app.tasks.classification_scores import ClassificationScores
from client_app.tasks.heads import head_names, last_linear, seeded_head
from fedapp.config import RunConfig


class SequenceClassification:
    """Implements `client_app.tasks.base.Task` for encoders and decoders with a linear head.

    Parameters
    ----------
    config : RunConfig
        ``model.max_length`` and ``seed``.
    label_map : list of str
        Label names in their order.
    tokenizer : transformers tokenizer
    """

    peft_task_type = "SEQ_CLS"

    def __init__(self, config: RunConfig, label_map: Sequence[str], tokenizer: Any) -> None:
        self.config = config
        self.label_map = list(label_map)
        self.tokenizer = tokenizer
        # Decoders often have no padding token; which one is used does not matter behind the mask.
        pad = tokenizer.pad_token_id
        self.pad_id: int = int(tokenizer.eos_token_id or 0) if pad is None else int(pad)

    def load_base_model(self, path: str, **options: Any) -> nn.Module:
        """Load the pre-trained weights and a head drawn from the run's seed."""
        from transformers import AutoModelForSequenceClassification

        with seeded_head(self.config.seed):
            model: nn.Module = AutoModelForSequenceClassification.from_pretrained(
                path,
                num_labels=len(self.label_map),
                id2label=dict(enumerate(self.label_map)),
                label2id={label: number for number, label in enumerate(self.label_map)},
                problem_type="single_label_classification",
                **options,
            )
        settings: Any = model.config
        if getattr(settings, "pad_token_id", None) is None:
            settings.pad_token_id = self.pad_id  # a decoder finds the last real token by it
        return model

    def heads(self, model: nn.Module) -> list[str]:
        """Names of the top-level modules with weights that are not part of the base model."""
        return head_names(model)

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Tokenise once; items hold ``input_ids`` (int32, shape (length,)), ``length``, ``label``.

        Texts beyond ``model.max_length`` tokens are cut, and their items say so in ``cut``.
        """
        if not records:
            return []
        longest = self.config.model.max_length
        texts = [record["text"] for record in records]
        encoded = self._tokenise(texts, truncation=True, max_length=longest)
        full = [number for number, ids in enumerate(encoded) if len(ids) == longest]
        whole = self._tokenise([texts[number] for number in full])
        cut = {number for number, ids in zip(full, whole, strict=True) if len(ids) > longest}
        return [
            {
                "input_ids": torch.tensor(ids, dtype=torch.int32),
                "length": len(ids),
                "label": int(record["label"]),
                "cut": number in cut,
            }
            for number, (ids, record) in enumerate(zip(encoded, records, strict=True))
        ]

    def _tokenise(self, texts: list[str], **options: Any) -> list[list[int]]:
        if not texts:
            return []
        encoded = self.tokenizer(
            texts,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # else a warning for every text that the model could not take whole
            **options,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Pad on the right to the longest item of the batch.

        Returns
        -------
        dict of str to Tensor
            ``input_ids`` and ``attention_mask`` of shape (records, longest), int64, and ``labels``
            of shape (records,), int64.
        """
        ids = pad_sequence(
            [item["input_ids"] for item in items], batch_first=True, padding_value=self.pad_id
        ).long()
        lengths = torch.tensor([item["length"] for item in items])
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
            "labels": torch.tensor([item["label"] for item in items], dtype=torch.int64),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy of a batch."""
        return cross_entropy(self.output(model, batch), batch["labels"])

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of shape (records, labels) in float32."""
        result = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits: Tensor = result.logits
        return logits.float()

    def scores(self, device: torch.device) -> ClassificationScores:
        """A fresh accumulator."""
        return ClassificationScores(len(self.label_map))

    def last_layer(self, model: nn.Module) -> nn.Module:
        """Return the head's last linear layer."""
        return last_linear(model)

    def counted(self, batch: Batch, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Every record; of a decoder, whose head answers for all tokens, its last token."""
        valid = torch.ones(shape, dtype=torch.bool)
        if len(shape) == 2:
            last = batch["attention_mask"].sum(dim=1, keepdim=True).cpu() - 1
            valid = torch.arange(shape[1]) == last
        return valid, batch["labels"]
