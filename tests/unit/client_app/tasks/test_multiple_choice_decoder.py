from pathlib import Path
from typing import Any

import pytest
import torch
from choice_models import DECODERS, QUESTIONS, choice_task, save_decoder
from transformers import AutoModelForCausalLM, AutoTokenizer

from client_app.tasks.multiple_choice_decoder import SHARING, DecoderChoice
from fedapp.errors import DataError

NONE = float("-inf")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder("llama", tmp_path_factory.mktemp("llama"))


def load(folder: Path, settings: dict[str, Any] | None = None) -> tuple[DecoderChoice, Any]:
    task = choice_task(folder, settings)
    assert isinstance(task, DecoderChoice)
    return task, task.load_base_model(str(folder)).eval()


def plain_score(
    model: Any, tokenizer: Any, context: str, choice: str, characters: bool = False
) -> float:
    """Sum the log-probabilities of the choice's tokens one by one, then divide by its length."""
    ids = tokenizer(context, add_special_tokens=False)["input_ids"]
    more = tokenizer(choice, add_special_tokens=False)["input_ids"]
    total = 0.0
    with torch.inference_mode():
        for token in more:
            chances = model(torch.tensor([ids])).logits[0, -1].double().softmax(dim=0)
            total += float(chances[token].log())
            ids = [*ids, token]
    return total / (len(choice) if characters else len(more))


@pytest.mark.parametrize("family", DECODERS)
def test_scores_against_a_plain_loop_over_tokens(family: str, tmp_path: Path) -> None:
    task, model = load(save_decoder(family, tmp_path))
    assert task.share == (family in SHARING)

    with torch.inference_mode():
        output = task.output(model, task.collate(task.prepare(QUESTIONS)))

    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for question, row in zip(QUESTIONS, output, strict=True):
        context, choices = question["context"], question["choices"]
        expected = [plain_score(plain, task.tokenizer, context, choice) for choice in choices]
        assert row[: len(expected)].tolist() == pytest.approx(expected, rel=1e-4)
        assert row[len(expected) :].tolist() == [NONE] * (4 - len(expected))


def test_every_family_that_shares_is_compared() -> None:
    assert set(SHARING) <= set(DECODERS)


def test_by_character(decoder: Path) -> None:
    task, model = load(decoder, {"model.choice-length": "characters"})

    output = task.output(model, task.collate(task.prepare(QUESTIONS[1:2])))

    question = QUESTIONS[1]
    expected = [
        plain_score(model, task.tokenizer, question["context"], choice, characters=True)
        for choice in question["choices"]
    ]
    assert output[0].tolist() == pytest.approx(expected, rel=1e-4)


def test_the_gradient_is_that_of_separate_passes(decoder: Path) -> None:
    gradients = []
    for share in (True, False):
        task, model = load(decoder)
        task.share = share
        task.loss(model, task.collate(task.prepare(QUESTIONS))).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])

    for shared, separate in zip(*gradients, strict=True):
        torch.testing.assert_close(shared, separate, rtol=1e-3, atol=1e-6)


def test_an_attention_that_adds_its_mask(decoder: Path) -> None:
    task, model = load(decoder)
    batch = task.collate(task.prepare(QUESTIONS))
    expected = task.output(model, batch)
    model.set_attn_implementation("eager")

    assert torch.allclose(task.output(model, batch), expected, atol=1e-5)


def test_padding_changes_nothing(decoder: Path) -> None:
    task, model = load(decoder)
    items = task.prepare(QUESTIONS)

    together = task.output(model, task.collate(items))

    for item, row in zip(items, together, strict=True):
        alone = task.output(model, task.collate([item]))[0]
        assert torch.allclose(alone, row[: len(alone)], atol=1e-5)


def test_permuting_the_choices_permutes_the_scores(decoder: Path) -> None:
    task, model = load(decoder)
    order = [2, 0, 3, 1]
    other = QUESTIONS[0] | {"choices": [QUESTIONS[0]["choices"][i] for i in order], "label": 0}

    first, second = task.output(model, task.collate(task.prepare([QUESTIONS[0], other])))

    assert torch.allclose(first[order], second, atol=1e-5)


@pytest.mark.parametrize(("share", "length"), [(True, 4 + 1 + 5), (False, 2 * 4 + 1 + 5)])
def test_the_context_is_cut_on_the_left(decoder: Path, share: bool, length: int) -> None:
    task = choice_task(decoder, {"model.max-length": 9})
    task.share = share
    words = "one two three four five six"
    long = {"context": words, "choices": ["no", "no no no no no"], "label": 0}

    item, short = task.prepare([long, QUESTIONS[1]])

    ids = task.tokenizer(words, add_special_tokens=False)["input_ids"]
    assert item["context"].tolist() == ids[-4:]
    assert [len(choice) for choice in item["choices"]] == [1, 5]
    assert (item["cut"], item["length"]) == (True, length)
    assert short["cut"] is False


def test_a_token_that_begins_every_text_survives_the_cut(decoder: Path) -> None:
    from client_app.sources import ModelSource
    from client_app.tasks.multiple_choice import multiple_choice
    from fedapp.config import RunConfig

    tokenizer = AutoTokenizer.from_pretrained(decoder)
    tokenizer.bos_token = "[CLS]"  # which its post-processor puts first
    config = RunConfig.from_flat({"model.max-length": 8})
    task: Any = multiple_choice(config, [], tokenizer, ModelSource(str(decoder), "small", ""))

    (item,) = task.prepare(
        [{"context": "one two three four", "choices": ["no", "yes"], "label": 0}]
    )

    assert item["context"][0] == tokenizer.cls_token_id
    assert (len(item["context"]), item["cut"]) == (7, True)


def test_blanks_between_context_and_choice_do_not_matter(decoder: Path) -> None:
    task = choice_task(decoder)
    blank = {"context": "this film is  ", "choices": [" good", "bad story with acting "]}

    (first,) = task.prepare([QUESTIONS[1]])
    (second,) = task.prepare([blank | {"label": 0}])

    assert torch.equal(first["context"], second["context"])
    assert all(map(torch.equal, first["choices"], second["choices"]))
    assert first["units"] == second["units"]


def test_what_the_tokenizer_cannot_read_is_one_sentence(decoder: Path) -> None:
    task = choice_task(decoder)

    with pytest.raises(DataError, match="makes no token of a choice: expected text"):
        task.prepare([{"context": "a", "choices": ["no", "\u200b\u0001"], "label": 0}])


def test_no_head_and_no_records(decoder: Path) -> None:
    task, model = load(decoder)

    assert task.heads(model) == []
    assert task.peft_task_type == "CAUSAL_LM"
    assert task.prepare([]) == []
