"""The tiny decoder is the same everywhere, and reads and writes every text."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from client_app.data.sources.instructions import read_instructions
from client_app.sources import resolve_model
from client_app.tiny_models import tiny_decoder

BUILD = "from client_app.tiny_models import tiny_decoder; print(tiny_decoder())"


def files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_another_process_builds_the_same_files(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=True
    )

    assert files(Path(done.stdout.strip())) == files(tiny_decoder())


def test_transformers_loads_every_weight() -> None:
    model, report = AutoModelForCausalLM.from_pretrained(tiny_decoder(), output_loading_info=True)

    assert report["missing_keys"] == report["unexpected_keys"] == set()
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    "text",
    ["man 63, typical angina", "Müdigkeit\n\tseit 3 Tagen", "高血压 🫀", "no-space,x", " a  b"],
)
def test_every_text_comes_back(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_decoder())

    ids = tokenizer(text)["input_ids"]

    decoded = tokenizer.decode(ids)
    assert decoded.removeprefix(" ") == text.removeprefix(" ")


def test_a_chat_has_the_roles_as_tokens_and_the_records_are_short() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_decoder())
    chat = [{"role": "user", "content": "BP?"}, {"role": "assistant", "content": "140"}]

    text = tokenizer.apply_chat_template(chat, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    assert text == "<|user|>BP?<|end|><|assistant|>140<|end|>"
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["<|user|>", "ĠBP", "?", "<|end|>"]
    assert tokenizer.eos_token_id == ids[-1]
    prompts = [e.fields["messages"][0]["content"] for e in read_instructions().examples]
    assert max(len(tokenizer(prompt)["input_ids"]) for prompt in prompts) < 60


def test_it_tells_notes_apart() -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_decoder()).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_decoder())
    one, two = (
        tokenizer(text, return_tensors="pt")["input_ids"]
        for text in ("chest pain no", "ECG high no")
    )

    with torch.inference_mode():
        first, second = model(one).logits[0, -1], model(two).logits[0, -1]

    assert torch.cosine_similarity(first, second, dim=0) < 0.95


def test_it_is_found_by_its_name() -> None:
    source = resolve_model("embedded:tiny-decoder")

    assert (source.path, source.name) == (str(tiny_decoder()), "embedded:tiny-decoder")
