import json

import numpy as np
import pytest
import torch
from choice_models import QUESTIONS, choice_task
from tiny_families import save_family
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from client_app.export import merge_into_base
from client_app.models import load_resident
from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.peft_format import save_peft
from fedapp.results import RunFolder

LABELS = ["healthy", "ill", "unclear"]
TEXTS = ["no chest pain", "typical angina , 63 years , male", "x"]


def make_run(tmp_path, family, task="sequence-classification", records=None, **site):
    """A finished run with a noisy adapter; returns its folder and the output of its model."""
    base, targets = save_family(family, tmp_path / "base")
    config = RunConfig.from_flat(
        {
            "model.source": str(base),
            "model.task": task,
            "lora.targets": targets,
            "output-dir": str(tmp_path / "runs"),
            "name": "one",
        }
    )
    labels = LABELS if task == "sequence-classification" else []
    resident = load_resident(config, labels)
    rng = np.random.default_rng(0)
    adapter = resident.parameters.read().map(
        lambda _, array: (0.3 * rng.standard_normal(array.shape)).astype(np.float32)
    )
    resident.parameters.load(adapter)
    folder = RunFolder.create(config)
    sites = {"A": {"label_map": labels, "base_model_digest": resident.base_digest} | site}
    folder.write_config(config, {}, sites=sites)
    save_peft(adapter, folder.adapter, resident.peft_config, "# the card\n")
    items = resident.task.prepare(records or [{"text": text, "label": 0} for text in TEXTS])
    with torch.inference_mode():
        logits = resident.task.output(resident.model, resident.task.collate(items))
    return folder.path, logits


@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert", "llama"])
def test_the_merged_folder_needs_no_peft(tmp_path, family):
    run, expected = make_run(tmp_path, family)
    target = merge_into_base(run, tmp_path / "merged")
    assert target == tmp_path / "merged"
    model = AutoModelForSequenceClassification.from_pretrained(target).eval()
    assert type(model).__module__.startswith("transformers.")
    tokenizer = AutoTokenizer.from_pretrained(target)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert list(model.config.id2label.values()) == LABELS
    assert (target / "README.md").read_text() == "# the card\n"
    assert not list(target.glob("*.bin"))


@pytest.mark.parametrize("family", ["bert", "electra", "gpt2", "llama"])
def test_multiple_choice_needs_no_peft_either(tmp_path, family):
    run, expected = make_run(tmp_path, family, "multiple-choice", QUESTIONS)
    target = merge_into_base(run, tmp_path / "merged")
    task = choice_task(target)
    decoder = family in ("gpt2", "llama")
    loader = AutoModelForCausalLM if decoder else AutoModelForMultipleChoice
    model = loader.from_pretrained(target).eval()
    assert type(model).__module__.startswith("transformers.")
    with torch.inference_mode():
        scores = task.output(model, task.collate(task.prepare(QUESTIONS)))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


def test_it_answers_with_the_run_s_labels(tmp_path):
    run, expected = make_run(tmp_path, "bert")
    classify = pipeline("text-classification", str(merge_into_base(run, tmp_path / "merged")))
    answers = [answer["label"] for answer in classify(TEXTS)]
    assert answers == [LABELS[index] for index in expected.argmax(1)]


def test_without_recorded_labels_they_are_numbered(tmp_path):
    run, _ = make_run(tmp_path, "bert")
    content = json.loads((run / "config.json").read_text())
    del content["sites"]
    (run / "config.json").write_text(json.dumps(content))
    merge_into_base(run, tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


def test_another_base_model_is_refused(tmp_path):
    run, _ = make_run(tmp_path, "bert", base_model_digest="f" * 64)
    with pytest.raises(ConfigError, match="was made with ffffffffffff; provide the same"):
        merge_into_base(run, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_label_map_of_another_size_is_refused(tmp_path):
    run, _ = make_run(tmp_path, "bert", label_map=["a", "b"])
    with pytest.raises(ConfigError, match="has 2 labels, but its adapter's head has 3"):
        merge_into_base(run, tmp_path / "merged")


def test_a_folder_with_content_is_left_alone(tmp_path):
    run, _ = make_run(tmp_path, "bert")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    with pytest.raises(ConfigError, match="mine holds something already"):
        merge_into_base(run, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis"]


def test_a_folder_without_a_run_or_an_adapter(tmp_path):
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        merge_into_base(tmp_path, tmp_path / "merged")
    run, _ = make_run(tmp_path, "bert")
    (run / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match="adapter settings not found"):
        merge_into_base(run, tmp_path / "merged")
