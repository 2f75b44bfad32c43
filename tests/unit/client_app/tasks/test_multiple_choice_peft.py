"""Adapters of both ways of multiple choice load with plain PEFT, without a key or a bit lost."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from choice_models import QUESTIONS, save_decoder
from peft import PeftModel, get_peft_model_state_dict
from safetensors.numpy import load_file
from tiny_families import save_family
from transformers import AutoModelForCausalLM, AutoModelForMultipleChoice

from client_app.data.schemas.multiple_choice import question
from client_app.methods.base import LocalRule
from client_app.models import ResidentModel, load_resident
from client_app.training import train
from fedapp.config import RunConfig
from fedapp.peft_format import save_peft

ENCODERS = ["bert", "roberta", "electra", "distilbert"]
DECODERS = {"llama": "q_proj,v_proj", "gpt2": "c_attn", "opt": "q_proj,v_proj"}


def make_config(source: Path | str, targets: str, **changes: Any) -> RunConfig:
    return RunConfig.from_flat(
        {
            "model.source": str(source),
            "model.task": "multiple-choice",
            "data.source": "embedded:choices",
            "lora.targets": targets,
            "lora.rank": 4,
        }
        | changes
    )


def make_model(family: str, folder: Path) -> tuple[Path, str]:
    if family in DECODERS:
        return save_decoder(family, folder), DECODERS[family]
    return save_family(family, folder)


def scores(model: Any, resident: ResidentModel) -> torch.Tensor:
    batch = resident.task.collate(resident.task.prepare(QUESTIONS))
    with torch.inference_mode():
        output: torch.Tensor = resident.task.output(model.eval(), batch)
    return output


def plain_load(family: str, source: Path, folder: Path) -> Any:
    torch.manual_seed(99)  # a fresh head of other numbers than ours
    loader = AutoModelForCausalLM if family in DECODERS else AutoModelForMultipleChoice
    base = loader.from_pretrained(source, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapter keys.*")  # missing or unexpected
        return PeftModel.from_pretrained(base, folder)


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS])
def test_to_plain_peft(family: str, tmp_path: Path) -> None:
    folder, targets = make_model(family, tmp_path / "base")
    resident = load_resident(make_config(folder, targets), [])
    rng = np.random.default_rng(0)
    adapter = resident.parameters.read().map(
        lambda _, array: (0.3 * rng.standard_normal(array.shape)).astype(np.float32)
    )
    before = scores(resident.model, resident)
    resident.parameters.load(adapter)
    save_peft(adapter, tmp_path / "adapter", resident.peft_config, "")

    model = plain_load(family, folder, tmp_path / "adapter")

    ours = scores(resident.model, resident)
    assert torch.equal(scores(model, resident), ours)
    assert not torch.allclose(ours, before, atol=1e-3)
    mine = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    theirs = get_peft_model_state_dict(model)
    assert mine.keys() == theirs.keys()
    for key, array in mine.items():
        np.testing.assert_array_equal(theirs[key], array)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["task_type"] == ("CAUSAL_LM" if family in DECODERS else "SEQ_CLS")


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_training_teaches_the_questions(family: str, tmp_path: Path) -> None:
    """The head of BERT and the pairs of both get gradients that lower the loss."""
    folder, targets = make_model(family, tmp_path / "base")
    config = make_config(folder, targets, **{"train.learning-rate": 0.02, "train.batch-size": 2})
    resident = load_resident(config, [])
    start = resident.parameters.initial(0)
    resident.parameters.load(start)
    items = resident.task.prepare(QUESTIONS)
    with torch.inference_mode():
        untrained = float(resident.task.loss(resident.model, resident.task.collate(items)))

    rule = LocalRule(config, resident.parameters)
    result = train(resident, items, rule, config, seed=0, first_step=0, total_steps=60, epochs=30)

    with torch.inference_mode():
        trained = float(resident.task.loss(resident.model, resident.task.collate(items)))
    assert result.steps == 60
    assert trained < 0.5 * untrained
    changed = {
        name
        for (name, one), (_, two) in zip(
            start.arrays(), resident.parameters.read().arrays(), strict=True
        )
        if not np.array_equal(one, two)
    }
    # A bias of the head shifts all choices alike, so it learns nothing.
    assert {name for name, _ in start.arrays()} - changed <= {"classifier.bias"}


def test_questions_come_from_the_schema_as_the_task_wants_them(tmp_path: Path) -> None:
    folder, targets = make_model("bert", tmp_path / "base")
    resident = load_resident(make_config(folder, targets), [])

    (item,) = resident.task.prepare([question("x", ["yes", "no"], 1).fields])

    assert item["label"] == 1
