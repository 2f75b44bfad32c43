"""Multiple choice with an encoder: a head scores every pair of context and choice."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from client_app.tasks.base import Batch, Record
from client_app.tasks.choice_pairs import PairTemplate, tokenise
from client_app.tasks.choice_room import room_for_context
from client_app.tasks.choice_scores import ChoiceScores, offered, score_matrix
from client_app.tasks.heads import head_names, last_linear, seeded_head
from fedapp.config import RunConfig


class EncoderChoice:
    """Implements `client_app.tasks.base.Task` as BERT's and RoBERTa's papers answer SWAG and RACE.

    The pairs of all questions of a batch go through the encoder together, the head gives each one
    score, and a softmax over the choices of a question gives their probabilities.

    Parameters
    ----------
    config : RunConfig
        ``model.max_length`` and ``seed``.
    tokenizer : transformers tokenizer
    settings : transformers configuration
        Of the base model.
    """

    peft_task_type = "SEQ_CLS"  # PEFT has none for multiple choice; to it a head is a head

    def __init__(self, config: RunConfig, tokenizer: Any, settings: Any) -> None:
        from transformers import MODEL_FOR_MULTIPLE_CHOICE_MAPPING

        self.config = config
        self.tokenizer = tokenizer
        self.template = PairTemplate.of(tokenizer)
        kind: Any = MODEL_FOR_MULTIPLE_CHOICE_MAPPING[type(settings)]
        # RoBERTa takes segments but knows only one; DistilBERT takes none.
        self.has_segments = (
            "token_type_ids" in inspect.signature(kind.forward).parameters
            and getattr(settings, "type_vocab_size", 0) > 1
        )
        self.pad_id = int(tokenizer.pad_token_id or 0)

    def load_base_model(self, path: str, **options: Any) -> nn.Module:
        """Load the pre-trained weights and a head drawn from the run's seed."""
        from transformers import AutoModelForMultipleChoice

        with seeded_head(self.config.seed):
            model: nn.Module = AutoModelForMultipleChoice.from_pretrained(path, **options)
        return model

    def heads(self, model: nn.Module) -> list[str]:
        """Names of the top-level modules with weights that are not part of the base model."""
        return head_names(model)

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Tokenise once; items hold ``input_ids`` and ``segments``, one int32 tensor a choice.

        Where a pair would exceed ``model.max_length`` tokens the context loses its beginning, for
        all choices of the question alike, and the item says so in ``cut``. ``length`` is the
        number of tokens of all pairs.

        Raises
        ------
        DataError
            If a choice leaves no room for its context.
        """
        contexts = tokenise(self.tokenizer, [record["context"] for record in records])
        choices = iter(
            tokenise(self.tokenizer, [text for record in records for text in record["choices"]])
        )
        items = []
        for record, context in zip(records, contexts, strict=True):
            answers = [next(choices) for _ in record["choices"]]
            room = room_for_context(answers, self.template.length, self.config.model.max_length)
            kept = context[max(0, len(context) - room) :]
            pairs = [self.template.join(kept, answer) for answer in answers]
            items.append(
                {
                    "input_ids": [torch.tensor(ids, dtype=torch.int32) for ids, _ in pairs],
                    "segments": [torch.tensor(types, dtype=torch.int32) for _, types in pairs],
                    "length": sum(len(ids) for ids, _ in pairs),
                    "label": int(record["label"]),
                    "cut": len(kept) < len(context),
                }
            )
        return items

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Pad on the right to the longest pair of the batch.

        Returns
        -------
        dict of str to Tensor
            ``input_ids``, ``attention_mask`` and, if the model takes them, ``token_type_ids`` of
            shape (pairs of all questions, longest), int64; ``offered`` (questions, most choices),
            bool; ``labels`` (questions,), int64.
        """
        pairs = [ids for item in items for ids in item["input_ids"]]
        lengths = torch.tensor([len(ids) for ids in pairs])
        ids_pt = pad_sequence(pairs, batch_first=True, padding_value=self.pad_id).long()
        batch = {
            "input_ids": ids_pt,
            "attention_mask": (torch.arange(ids_pt.shape[1]) < lengths[:, None]).long(),
            "offered": offered([len(item["input_ids"]) for item in items]),
            "labels": torch.tensor([item["label"] for item in items], dtype=torch.int64),
        }
        if self.has_segments:
            segments = [part for item in items for part in item["segments"]]
            batch["token_type_ids"] = pad_sequence(segments, batch_first=True).long()
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy of the softmax over each question's choices."""
        return cross_entropy(self.output(model, batch), batch["labels"])

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scores of shape (questions, most choices) in fp32, -inf where there is no choice."""
        inputs = ("input_ids", "attention_mask", "token_type_ids")
        # One question with all pairs as its choices: so no pair of padding is computed.
        result = model(**{name: batch[name][None] for name in inputs if name in batch})
        return score_matrix(result.logits[0], batch["offered"])

    def scores(self, device: torch.device) -> ChoiceScores:
        """A fresh accumulator."""
        return ChoiceScores()

    def last_layer(self, model: nn.Module) -> nn.Module:
        """Return the layer that scores a pair."""
        return last_linear(model)

    def counted(self, batch: Batch, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Every pair; the label says whether it is the right one."""
        offered_qc = batch["offered"].cpu()
        right_qc = torch.zeros(offered_qc.shape, dtype=torch.int64)
        right_qc[torch.arange(len(right_qc)), batch["labels"].cpu()] = 1
        return torch.ones(shape, dtype=torch.bool), right_qc[offered_qc]
