import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from choice_models import QUESTIONS, choice_task
from tiny_families import save_family
from transformers import AutoModelForMultipleChoice, AutoTokenizer

from client_app.tasks.multiple_choice_encoder import EncoderChoice
from fedapp.errors import DataError

NONE = float("-inf")
FAMILIES = ["bert", "roberta", "electra", "distilbert"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = save_family("bert", tmp_path_factory.mktemp("bert"), initializer_range=0.5)
    return folder


def load(folder: Path, settings: dict[str, Any] | None = None) -> tuple[EncoderChoice, Any]:
    task = choice_task(folder, settings)
    assert isinstance(task, EncoderChoice)
    return task, task.load_base_model(str(folder)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_against_a_plain_loop_over_single_pairs(family: str, tmp_path: Path) -> None:
    save_family(family, tmp_path, initializer_range=0.5)
    task, model = load(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    with torch.inference_mode():
        output = task.output(model, task.collate(task.prepare(QUESTIONS)))
        for question, row in zip(QUESTIONS, output, strict=True):
            for place, choice in enumerate(question["choices"]):
                pair = tokenizer(question["context"], choice, return_tensors="pt")
                if not task.has_segments:
                    del pair["token_type_ids"]
                alone = model(**{name: value[None] for name, value in pair.items()}).logits
                assert alone.shape == (1, 1)
                torch.testing.assert_close(row[place], alone[0, 0], rtol=1e-4, atol=1e-5)
            assert row[len(question["choices"]) :].tolist() == [NONE] * (
                4 - len(question["choices"])
            )
    spread = output[0, :4]
    assert spread.max() - spread.min() > 1e-2  # else a mix-up would not show


def test_the_loss_is_that_of_transformers(encoder: Path) -> None:
    task, model = load(encoder)
    questions = [QUESTIONS[0], QUESTIONS[0] | {"context": "this film is", "label": 1}]
    batch = task.collate(task.prepare(questions))

    inputs = {
        name: batch[name].view(2, 4, -1)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    expected = model(**inputs, labels=batch["labels"]).loss

    assert torch.allclose(task.loss(model, batch), expected, atol=1e-6)


def test_padding_changes_nothing(encoder: Path) -> None:
    task, model = load(encoder)
    items = task.prepare(QUESTIONS)

    together = task.output(model, task.collate(items))

    for item, row in zip(items, together, strict=True):
        alone = task.output(model, task.collate([item]))[0]
        assert torch.allclose(alone, row[: len(alone)], atol=1e-5)


def test_permuting_the_choices_permutes_the_scores(encoder: Path) -> None:
    task, model = load(encoder)
    order = [2, 0, 3, 1]
    other = QUESTIONS[0] | {"choices": [QUESTIONS[0]["choices"][i] for i in order], "label": 0}

    first, second = task.output(model, task.collate(task.prepare([QUESTIONS[0], other])))

    assert torch.allclose(first[order], second, atol=1e-6)


def test_the_context_is_cut_on_the_left_for_all_choices_alike(encoder: Path) -> None:
    task = choice_task(encoder, {"model.max-length": 12})
    words = "one two three four five six"
    long = {"context": words, "choices": ["yes", "no no no no no"], "label": 0}

    (item, short) = task.prepare([long, QUESTIONS[1]])

    tokenizer = task.tokenizer
    kept = tokenizer(words, add_special_tokens=False)["input_ids"][-4:]
    longest = [
        [tokenizer.cls_token_id, *kept, tokenizer.sep_token_id, *answer, tokenizer.sep_token_id]
        for answer in tokenizer(long["choices"], add_special_tokens=False)["input_ids"]
    ]
    assert [ids.tolist() for ids in item["input_ids"]] == longest
    assert (item["cut"], item["length"]) == (True, 8 + 12)
    assert short["cut"] is False


def test_a_choice_is_never_cut(encoder: Path) -> None:
    task = choice_task(encoder, {"model.max-length": 12})

    with pytest.raises(DataError, match="a choice of 9 tokens and 3 special ones leave no room"):
        task.prepare([{"context": "a", "choices": ["no", "no " * 9], "label": 0}])


def test_sixteen_and_two_choices_in_one_batch(encoder: Path) -> None:
    task, model = load(encoder)
    many = {"context": "pain", "choices": [f"{n} years" for n in range(16)], "label": 15}

    output = task.output(model, task.collate(task.prepare([many, QUESTIONS[1]])))

    assert output.isfinite().sum(dim=1).tolist() == [16, 2]
    assert task.loss(model, task.collate(task.prepare([many, QUESTIONS[1]]))).isfinite()


def test_the_head_depends_on_the_seed_and_not_on_the_global_generator(encoder: Path) -> None:
    def head(seed: int) -> torch.Tensor:
        model: Any = load(encoder, {"seed": seed})[1]
        return copy.deepcopy(model.classifier.weight)

    torch.manual_seed(1)
    first = head(0)
    torch.manual_seed(2)
    assert torch.equal(head(0), first)
    assert not torch.equal(head(1), first)


def test_heads_and_no_records(encoder: Path) -> None:
    task, model = load(encoder)

    assert task.heads(model) == ["classifier"]
    assert model.classifier.weight.shape[0] == 1
    assert task.prepare([]) == []
    assert type(model) is type(AutoModelForMultipleChoice.from_pretrained(encoder))
