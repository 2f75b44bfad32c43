"""An adapter goes to plain PEFT and comes from it without a key or a bit lost."""

import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from tiny_families import FAMILIES, save_family
from transformers import AutoModelForSequenceClassification

from client_app.models import load_resident
from fedapp.config import RunConfig
from fedapp.peft_format import load_peft, save_peft

LABELS = ["a", "b", "c"]
TEXTS = ["no chest pain", "typical angina , 63 years , male", "x", "the film is great and funny"]


def make_resident(source, targets, rank=4):
    changes = {"model.source": str(source), "lora.targets": targets, "lora.rank": rank}
    return load_resident(RunConfig.from_flat(changes), LABELS)


def noise(adapter):
    rng = np.random.default_rng(0)
    return adapter.map(lambda _, array: (0.3 * rng.standard_normal(array.shape)).astype(np.float32))


def logits(model, resident):
    items = resident.task.prepare([{"text": text, "label": 0} for text in TEXTS])
    batch = resident.task.collate(items)
    with torch.inference_mode():
        return model.eval()(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits


def plain_base(source, pad=None):
    torch.manual_seed(99)  # a fresh head, and a fresh pooler, of other numbers than ours
    base = AutoModelForSequenceClassification.from_pretrained(
        source, num_labels=len(LABELS), dtype=torch.float32
    )
    if base.config.pad_token_id is None:
        base.config.pad_token_id = pad
    return base


def plain_load(source, folder, pad=None):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapter keys.*")  # missing or unexpected
        return PeftModel.from_pretrained(plain_base(source, pad), folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_to_plain_peft_and_back(family, tmp_path):
    folder, targets = save_family(family, tmp_path / "base")
    resident = make_resident(folder, targets)
    adapter = noise(resident.parameters.read())
    resident.parameters.load(adapter)
    save_peft(adapter, tmp_path / "adapter", resident.peft_config, "")

    model = plain_load(folder, tmp_path / "adapter", resident.task.pad_id)

    assert torch.equal(logits(model, resident), logits(resident.model, resident))
    mine = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    theirs = get_peft_model_state_dict(model)
    assert mine.keys() == theirs.keys()
    for key, array in mine.items():
        np.testing.assert_array_equal(theirs[key], array)

    model.save_pretrained(tmp_path / "again")
    assert load_peft(tmp_path / "again").digest() == adapter.digest()


@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert"])
def test_an_adapter_made_by_plain_peft_is_imported(family, tmp_path):
    folder, targets = save_family(family, tmp_path / "base")
    resident = make_resident(folder, targets, rank=3)
    model = get_peft_model(
        plain_base(folder, resident.task.pad_id),
        LoraConfig(
            r=3,
            lora_alpha=16,
            target_modules=targets.split(","),
            task_type="SEQ_CLS",
            init_lora_weights=False,  # B is not zero
            fan_in_fan_out=family == "gpt2",
            modules_to_save=["pre_classifier"] if family == "distilbert" else None,
        ),
    )
    model.save_pretrained(tmp_path / "adapter")
    resident.parameters.load(load_peft(tmp_path / "adapter"))
    assert torch.equal(logits(model, resident), logits(resident.model, resident))


def test_minilm(tmp_path):
    resident = make_resident("embedded:minilm", "query,value", rank=8)
    adapter = noise(resident.parameters.read())
    resident.parameters.load(adapter)
    save_peft(adapter, tmp_path / "adapter", resident.peft_config, "")
    model = plain_load(resident.source.path, tmp_path / "adapter")
    assert torch.equal(logits(model, resident), logits(resident.model, resident))


def test_what_the_checkpoint_lacks_is_trained_and_exported_too(tmp_path):
    folder, targets = save_family("bert", tmp_path / "base")
    weights = load_torch(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    assert len(kept) == len(weights) - 2
    save_torch(kept, folder / "model.safetensors", {"format": "pt"})
    resident = make_resident(folder, targets)
    assert set(resident.parameters.tensors) == {
        *(f"bert.pooler.dense.{part}" for part in ("weight", "bias")),
        *(f"classifier.{part}" for part in ("weight", "bias")),
    }
    adapter = noise(resident.parameters.initial(0))
    resident.parameters.load(adapter)
    save_peft(adapter, tmp_path / "adapter", resident.peft_config, "")
    model = plain_load(folder, tmp_path / "adapter")
    assert torch.equal(logits(model, resident), logits(resident.model, resident))
