"""Instruction tuning against a plain loop over tokens, and transformers' own `generate`."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import save_family
from transformers import AutoTokenizer, GenerationConfig

from client_app.sources import ModelSource
from client_app.tasks import build_task
from client_app.tasks.causal_lm import IGNORED, CausalLM, pad_left
from client_app.tasks.generation import generate, spread
from client_app.tiny_models import tiny_decoder
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DataError

CPU = torch.device("cpu")
RECORDS = [
    ("man 63, typical angina, BP 145. Is the blood pressure high?", "yes, 145"),
    ("How old is the patient?", "63 years"),
    ("", "no"),
    ("woman 50, asymptomatic. Which findings are abnormal?", "high cholesterol, abnormal ECG"),
    ("woman 41. What does the ECG show?", "normal"),
]


def record(prompt: str, response: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "response": response}


def task(folder: Path | None = None, **settings: Any) -> CausalLM:
    config = RunConfig.from_flat({"model.task": "causal-lm", **settings})
    built = build_task(config, [], ModelSource(str(folder or tiny_decoder()), "tiny", ""))
    assert isinstance(built, CausalLM)
    return built


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A model this small is fastest so, and much faster on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> Any:
    return task().load_base_model(str(tiny_decoder())).requires_grad_(False).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_decoder())


def sequence(tokenizer: Any, prompt: str, response: str) -> tuple[list[int], list[int]]:
    """Prompt tokens in the chat template, written out by hand, and response with its end."""
    text = f"<|user|>{prompt}<|end|><|assistant|>"
    prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return prompt_ids, [*tokenizer(response)["input_ids"], tokenizer.eos_token_id]


@torch.no_grad()
def oracle(model: Any, prompt_ids: list[int], answer_ids: list[int]) -> tuple[float, int]:
    """Summed cross entropy and hits of an answer, token by token, with the whole model."""
    total, hits = 0.0, 0
    for number, token in enumerate(answer_ids):
        seen = torch.tensor([prompt_ids + answer_ids[:number]])
        logits = model(input_ids=seen).logits[0, -1].double()
        total -= float(logits.log_softmax(0)[token])
        hits += int(logits.argmax()) == token
    return total, hits


def test_the_loss_is_that_of_a_plain_loop_over_the_response_tokens(
    model: Any, tokenizer: Any
) -> None:
    parts = [oracle(model, *sequence(tokenizer, *pair)) for pair in RECORDS]
    tokens = [len(sequence(tokenizer, *pair)[1]) for pair in RECORDS]
    built = task()
    items = built.prepare([record(*pair) for pair in RECORDS])

    batch = built.collate(items)
    loss = built.loss(model, batch)
    scores = built.scores(CPU)
    scores.update(built.output(model, batch), batch)

    assert [item["terms"] for item in items] == tokens
    mean = sum(total for total, _ in parts) / sum(tokens)
    assert float(loss.detach()) == pytest.approx(mean, rel=1e-5)
    metrics = scores.compute()
    assert metrics == {
        "loss": pytest.approx(mean, rel=1e-5),
        "perplexity": pytest.approx(math.exp(mean), rel=1e-4),
        "token_accuracy": sum(hits for _, hits in parts) / sum(tokens),
        "response_tokens": sum(tokens),
        "examples": len(RECORDS),
    }


def test_the_gradient_is_that_of_one_record_after_the_other(tokenizer: Any) -> None:
    built = task()
    model = built.load_base_model(str(tiny_decoder()))
    weight = model.model.layers[0].self_attn.q_proj.weight
    items = built.prepare([record(*pair) for pair in RECORDS])
    total = sum(item["terms"] for item in items)

    together = torch.autograd.grad(built.loss(model, built.collate(items)), weight)[0]
    apart = sum(
        torch.autograd.grad(built.loss(model, built.collate([item])), weight)[0]
        * (item["terms"] / total)
        for item in items
    )

    assert torch.allclose(together, apart, atol=1e-6)  # type: ignore[arg-type]


def test_padding_changes_nothing_on_either_side(model: Any) -> None:
    built = task()
    items = built.prepare([record(*pair) for pair in RECORDS])
    ids = [item["input_ids"].long() for item in items]
    longest = max(map(len, ids))

    left = built.output(model, built.collate(items))
    right = torch.full((len(ids), longest), built.pad_id)
    labels = torch.full((len(ids), longest), IGNORED)
    for row, (tokens, item) in enumerate(zip(ids, items, strict=True)):
        right[row, : len(tokens)] = tokens
        labels[row, len(tokens) - item["terms"] : len(tokens)] = tokens[-item["terms"] :]
    mask = torch.arange(longest) < torch.tensor([[item["length"]] for item in items])
    with torch.no_grad():
        logits = model(input_ids=right, attention_mask=mask.long()).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(
        logits.double().transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=IGNORED
    ).sum(1)

    assert torch.allclose(left.loss, expected, rtol=1e-5)
    for number, item in enumerate(items):
        alone = built.output(model, built.collate([item]))
        assert torch.allclose(alone.loss[0], left.loss[number], rtol=1e-5)
        assert alone.hits[0] == left.hits[number]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_other_decoders_give_the_same_in_a_batch_and_alone(family: str, tmp_path: Path) -> None:
    folder, _ = save_family(family, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # an encoder's, without an end of text
    tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(folder)
    built = task(folder)
    model = built.load_base_model(str(folder)).eval()
    items = built.prepare([record(*pair) for pair in RECORDS if pair[0]])

    together = built.output(model, built.collate(items))
    alone = [built.output(model, built.collate([item])).loss[0] for item in items]

    assert torch.allclose(together.loss, torch.stack(alone), rtol=1e-4)


def test_logits_are_computed_in_pieces(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = task()
    batch = built.collate(built.prepare([record(*pair) for pair in RECORDS]))
    whole = built.output(model, batch)
    seen = []
    monkeypatch.setattr("client_app.tasks.causal_lm.MOST_LOGITS", 1)
    original = model.forward
    monkeypatch.setattr(model, "forward", lambda **kw: (seen.append(1), original(**kw))[1])

    pieces = built.output(model, batch)

    assert len(seen) == len(RECORDS)
    assert torch.allclose(whole.loss, pieces.loss)


def test_only_the_columns_of_the_longest_response_reach_the_output_layer(model: Any) -> None:
    built = task()
    items = built.prepare([record(*pair) for pair in RECORDS])
    widths: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda *args: widths.append(args[2].shape[1]))

    built.loss(model, built.collate(items))
    hook.remove()

    assert widths == [max(item["terms"] for item in items)]


# What is cut, and what is left out -------------------------------------------------------------


def test_a_long_prompt_loses_its_beginning_and_says_so(tokenizer: Any) -> None:
    prompt, response = RECORDS[0]
    prompt_ids, answer_ids = sequence(tokenizer, prompt, response)
    room = len(prompt_ids) + len(answer_ids)

    for longest, cut in ((room, False), (room - 1, True), (len(answer_ids) + 1, True)):
        (item,) = task(**{"model.max-length": longest, "train.generate-tokens": 1}).prepare(
            [record(prompt, response)]
        )
        ids = (prompt_ids + answer_ids)[-longest:]
        assert (item["input_ids"].tolist(), item["cut"]) == (ids, cut)
        assert (item["length"], item["terms"]) == (len(ids), len(answer_ids))


def test_a_response_that_is_too_long_loses_its_end_and_keeps_one_prompt_token(
    tokenizer: Any,
) -> None:
    answer = "yes " * 30
    prompt_ids, answer_ids = sequence(tokenizer, "BP?", answer)

    (item,) = task(**{"model.max-length": 16, "train.generate-tokens": 1}).prepare(
        [record("BP?", answer)]
    )

    assert item["input_ids"].tolist() == [prompt_ids[-1], *answer_ids[:15]]
    assert (item["length"], item["terms"], item["cut"]) == (16, 15, True)


def test_a_response_of_zero_tokens_is_left_out() -> None:
    records = [record("How old?", "63"), record("How old?", ""), record("", "yes")]

    items = task().prepare(records)

    assert [item["reference"] for item in items] == ["63", "yes"]
    assert task().prepare([]) == []


def test_a_template_that_refuses_the_roles_is_one_sentence(tmp_path: Path) -> None:
    shutil.copytree(tiny_decoder(), tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}"
        "{{ raise_exception('no ' + m['content']) }}{% endif %}{{ m['content'] }}{% endfor %}"
    )
    tokenizer.save_pretrained(tmp_path / "m")
    turns = [{"role": "system", "content": "Maria"}, {"role": "user", "content": "BP?"}]

    with pytest.raises(DataError, match=r"does not take .* the roles system, user; ex") as caught:
        task(tmp_path / "m").prepare([{"messages": turns, "response": "140"}])

    assert "Maria" not in str(caught.value)


def test_without_a_template_a_plain_one_is_used(tmp_path: Path) -> None:
    shutil.copytree(tiny_decoder(), tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    tokenizer.chat_template, tokenizer.bos_token = None, "<|pad|>"
    tokenizer.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").unlink(missing_ok=True)
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "BP?"},
        {"role": "assistant", "content": "140"},
        {"role": "user", "content": "High?"},
    ]

    (item,) = task(tmp_path / "m").prepare([{"messages": turns, "response": "yes"}])

    text = tokenizer.decode(item["input_ids"], clean_up_tokenization_spaces=False)
    assert text.replace("\n ", "\n") == (
        "<|pad|> System:\nBe brief.\n\nUser:\nBP?\n\nAssistant:\n140\n\nUser:\nHigh?\n\n"
        "Assistant:\nyes<|end|>"
    )


def test_a_tokenizer_without_an_end_is_one_sentence(tmp_path: Path) -> None:
    folder, _ = save_family("llama", tmp_path)

    with pytest.raises(ConfigError, match=r"has no eos_token, by which a causal-lm ends"):
        task(folder)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    folder, _ = save_family("bert", tmp_path)

    with pytest.raises(ConfigError, match=r"\(bert\) is an encoder, .*embedded:tiny-decoder"):
        task().load_base_model(str(folder))


# Generation ------------------------------------------------------------------------------------


@torch.no_grad()
def greedy(model: Any, prompt: list[int], most: int, ends: set[int]) -> list[int]:
    """The most likely token after the other, each time with the whole model and no cache."""
    answer: list[int] = []
    while len(answer) < most:
        token = int(model(input_ids=torch.tensor([prompt + answer])).logits[0, -1].argmax())
        if token in ends:
            break
        answer.append(token)
    return answer


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_batches_write_what_single_prompts_get(model: Any, tokenizer: Any, batch_size: int) -> None:
    prompts = [torch.tensor(sequence(tokenizer, *pair)[0]) for pair in RECORDS]
    singles = [greedy(model, prompt.tolist(), 12, set()) for prompt in prompts]
    end = singles[0][5]  # a token that some of them reach early
    settings = GenerationConfig(
        max_new_tokens=12, do_sample=False, eos_token_id=end, pad_token_id=0
    )
    own = [model.generate(p[None], generation_config=settings)[0, len(p) :] for p in prompts]

    answers = generate(model, prompts, most=12, batch_size=batch_size, end=end, pad=0, device=CPU)

    ends = {end, model.generation_config.eos_token_id}
    expected = [greedy(model, prompt.tolist(), 12, ends) for prompt in prompts]
    assert answers == expected
    assert [[t for t in row.tolist() if t != end] for row in own] == expected
    assert len(answers[0]) < 12


def test_generation_ends_as_soon_as_all_have_ended(model: Any, tokenizer: Any) -> None:
    prompt = torch.tensor(sequence(tokenizer, *RECORDS[0])[0])
    first = greedy(model, prompt.tolist(), 3, set())
    calls: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda *args: calls.append(1))

    generate(model, [prompt], most=500, batch_size=1, end=first[2], pad=0, device=CPU)
    hook.remove()

    assert len(calls) <= 4


def test_what_the_model_s_own_settings_ask_for_is_not_done(model: Any, tokenizer: Any) -> None:
    prompts = [torch.tensor(sequence(tokenizer, *pair)[0]) for pair in RECORDS]
    expected = [greedy(model, p.tolist(), 6, {tokenizer.eos_token_id}) for p in prompts]
    before = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=2.0, repetition_penalty=5.0, eos_token_id=before.eos_token_id
    )
    theirs = model.generation_config
    try:
        answers = generate(
            model, prompts, most=6, batch_size=8, end=tokenizer.eos_token_id, pad=0, device=CPU
        )
        assert model.generation_config is theirs
    finally:
        model.generation_config = before

    assert answers == expected


def test_metrics_of_what_is_written(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = task(**{"model.max-length": 32, "train.generate-tokens": 12})
    items = built.prepare([record(*pair) for pair in RECORDS])
    asked: list[list[int]] = []

    def answer(_: Any, prompts: list[torch.Tensor], **settings: Any) -> list[list[int]]:
        asked.extend(prompt.tolist() for prompt in prompts)
        texts = [" yes, 145", "64 years", "no", "high cholesterol", ""]
        return [built.chat.tokens([text])[0] for text in texts]

    monkeypatch.setattr("client_app.tasks.causal_lm.generate", answer)
    metrics = built.generated(model, items, built.config.train, CPU)

    longer = sum(len(item["prompt_ids"]) > 20 for item in items)
    assert longer > 0
    assert max(map(len, asked)) == 20
    assert asked[0] == items[0]["prompt_ids"].tolist()[-20:]
    assert metrics == {
        "exact_match": 2 / 5,
        "rouge_l": pytest.approx((1 + 1 / 2 + 1 + 2 / 3 + 0) / 5),
        "generated": 5.0,
        "cut_prompts": float(longer),
    }


def test_nothing_is_written_where_nothing_is_asked_for(model: Any) -> None:
    built = task(**{"train.generate-tokens": 0})
    items = built.prepare([record(*pair) for pair in RECORDS])

    assert built.generated(model, items, built.config.train, CPU) == {}
    assert built.generated(model, [], RunConfig().train, CPU) == {}


def test_the_records_written_for_are_evenly_spread() -> None:
    assert spread(list(range(10)), 4) == [0, 2, 5, 7]
    assert spread([1, 2, 3], 3) == [1, 2, 3]
    assert spread([1, 2, 3], 0) == [1, 2, 3]


def test_an_empty_prompt_is_answered_too(model: Any) -> None:
    built = task(**{"train.generate-tokens": 3})
    (item,) = built.prepare([record("", "yes")])

    metrics = built.generated(model, [item], built.config.train, CPU)

    assert (metrics["generated"], metrics["cut_prompts"]) == (1.0, 0.0)


def test_rows_are_filled_up_on_the_left() -> None:
    rows = [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)]

    assert pad_left(rows, 9).tolist() == [[1, 2], [9, 3]]
