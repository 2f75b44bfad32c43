import hashlib
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from client_app.tiny_models import tiny_encoder

BUILD = "from client_app.tiny_models import tiny_encoder; print(tiny_encoder())"


def files(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_concurrent_builds_in_other_processes_give_the_same_files(home, monkeypatch):
    builds = []
    for number in range(3):
        other = home if number < 2 else home / "other"
        environment = {
            **os.environ,
            "HOME": str(other),
            "PYTHONHASHSEED": str(number),
            "OMP_NUM_THREADS": str(number + 1),
        }
        builds.append(
            subprocess.Popen(
                [sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    folders = [build.communicate()[0].strip() for build in builds]
    assert [build.returncode for build in builds] == [0, 0, 0]
    assert folders[0] == folders[1] != folders[2]
    assert files(tiny_encoder()) == files(tiny_encoder().__class__(folders[2]))
    assert [path.name for path in tiny_encoder().parent.iterdir()] == [tiny_encoder().name]


def test_transformers_loads_every_weight_and_the_tokenizer():
    model, report = AutoModel.from_pretrained(tiny_encoder(), output_loading_info=True)
    assert report["missing_keys"] == report["unexpected_keys"] == set()
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder())
    text = "Chest pain, 63 years: GREAT xylophone \u00e9"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.convert_ids_to_tokens(ids)[:3] == ["[CLS]", "chest", "pain"]
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.decode(ids, skip_special_tokens=True).startswith("chest pain, 63 years")


def test_it_tells_notes_apart():
    model = AutoModel.from_pretrained(tiny_encoder()).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder())
    batch = tokenizer(["no chest pain", "typical angina"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        first, second = model(**batch).pooler_output
    assert torch.cosine_similarity(first, second, dim=0) < 0.9
