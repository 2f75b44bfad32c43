"""Instruction tuning at a site: handshake, training by tokens, metrics, and plain PEFT after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from client_app.data import SiteData
from client_app.export import merge_into_base
from client_app.methods.base import LocalRule
from client_app.models import load_resident
from client_app.site import LocalSite
from client_app.tiny_models import tiny_decoder
from client_app.training import train
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, Reply, SiteDescription
from fedapp.peft_format import save_peft
from fedapp.reported import check_reported
from fedapp.results import RunFolder

ALL = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
SETTINGS = {
    "model.source": "embedded:tiny-decoder",
    "model.task": "causal-lm",
    "model.max-length": 32,
    "lora.targets": ALL,
    "lora.rank": 2,
    "train.batch-size": 4,
    "train.threads": 1,
    "train.local-epochs": 1,
    "train.generate-tokens": 4,
    "train.generate-examples": 2,
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_config(**changes: Any) -> RunConfig:
    return RunConfig.from_flat({**SETTINGS, **changes})


def record(number: int, response: str | None = None) -> dict[str, Any]:
    answer = f"{number} years" if response is None else response
    return {"messages": [{"role": "user", "content": f"man {number}, old?"}], "response": answer}


def make_data(count: int = 14) -> SiteData:
    records = [record(number) for number in range(count)]
    splits = {"train": records[:-5], "validation": records[-5:-2], "test": records[-2:]}
    return SiteData("north", [], splits, task="causal-lm")


def run(data: SiteData, action: Action, config: RunConfig, **more: Any) -> Reply:
    reply = LocalSite(data).execute(Instruction(action, "north", config, 1, **more))
    assert reply.failure is None, reply.failure
    return reply


def test_the_handshake_has_an_empty_label_map_and_no_heads() -> None:
    told = SiteDescription(**run(make_data(), Action.DESCRIBE, make_config()).description)

    assert (told.label_map, told.heads, told.task) == ([], [], "causal-lm")
    assert told.peft_config["task_type"] == "CAUSAL_LM"
    assert told.notes == []


def test_prompts_that_are_cut_and_responses_without_a_token_are_counted() -> None:
    data = make_data()
    data.splits["train"][0] = record(1, "")
    data.splits["train"][1]["messages"][0]["content"] = "BP " * 40

    notes = run(data, Action.DESCRIBE, make_config()).description["notes"]

    assert notes == [
        "1 training text longer than 32 tokens was cut",
        "1 training record with a response of zero tokens left out",
    ]
    data.splits["train"][2] = record(2, "")
    notes = run(data, Action.DESCRIBE, make_config()).description["notes"]
    assert notes[1] == "2 training records with a response of zero tokens left out"


def test_a_site_whose_responses_are_all_empty_is_one_sentence() -> None:
    data, config = make_data(), make_config()
    adapter = run(data, Action.INITIAL, config).payloads["adapter"]
    data = SiteData("north", [], {"train": [record(1, ""), record(2, "")]}, task="causal-lm")
    ask = Instruction(Action.TRAIN, "north", config, 1, payloads={"adapter": adapter})

    reply = LocalSite(data).execute(ask)

    assert reply.failure is not None
    assert "the responses of all 2 training records have zero tokens" in reply.failure.message


def test_training_replies_with_the_task_s_metrics_and_the_records_that_were_used() -> None:
    data, config = make_data(), make_config()
    data.splits["train"][0] = record(1, "")
    adapter = run(data, Action.INITIAL, config).payloads["adapter"]

    reply = run(data, Action.TRAIN, config, payloads={"adapter": adapter}, splits=("validation",))

    assert check_reported(reply, "causal-lm") == reply
    assert reply.weight == 8.0
    for phase in ("received", "personal"):
        metrics = reply.metrics[f"{phase}/validation"]
        assert {"loss", "perplexity", "token_accuracy", "exact_match", "rouge_l"} < set(metrics)
        assert (metrics["examples"], metrics["generated"]) == (3.0, 2.0)
    received, personal = (
        reply.metrics[f"{p}/validation"]["loss"] for p in ("received", "personal")
    )
    assert personal < received


def test_without_generation_there_are_no_metrics_of_it() -> None:
    data, config = make_data(), make_config(**{"train.generate-tokens": 0})
    adapter = run(data, Action.INITIAL, config).payloads["adapter"]

    reply = run(data, Action.EVALUATE, config, payloads={"adapter": adapter})

    assert set(reply.metrics["received/validation"]) == {
        "loss", "perplexity", "token_accuracy", "response_tokens", "examples"
    }  # fmt: skip


def test_other_settings_of_generation_do_not_load_the_model_again() -> None:
    one = load_resident(make_config(), [])
    two = load_resident(make_config(**{"train.generate-tokens": 9}), [])

    assert one is two


def test_a_step_is_the_same_however_its_records_are_dealt_to_batches() -> None:
    """Every response token of an optimiser step counts the same, in one batch or in four."""
    records = [record(n, "yes " * (1 + 3 * (n % 4))) for n in range(16)]
    adapters = []
    for size, batches in ((16, 1), (4, 4), (1, 16)):
        config = make_config(
            **{
                "train.batch-size": size,
                "train.gradient-accumulation": batches,
                "train.optimizer": "sgd",
                "train.learning-rate": 0.5,
                "model.max-length": 48,
            }
        )
        resident = load_resident(config, [])
        initial = resident.parameters.initial(0)
        resident.parameters.load(initial)
        items = resident.task.prepare(records)
        rule = LocalRule(config, resident.parameters)
        result = train(resident, items, rule, config, seed=0, first_step=0, total_steps=1, epochs=1)
        adapters.append((result.loss, dict(resident.parameters.read().arrays())))

    (loss, whole), *others = adapters
    start = dict(initial.arrays())
    assert max(np.abs(whole[name] - start[name]).max() for name in whole) > 1e-3
    for other_loss, other in others:
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for name, array in whole.items():
            np.testing.assert_allclose(other[name], array, atol=2e-6)


def test_names_that_do_not_fit_a_decoder_are_answered_with_those_that_do() -> None:
    data, config = make_data(), make_config(**{"lora.targets": "query,value"})

    reply = LocalSite(data).execute(Instruction(Action.DESCRIBE, "north", config))

    assert reply.failure is not None
    assert reply.failure.kind == "ConfigError"
    assert "lora.targets names 'query', but the model has no such layer" in reply.failure.message
    for name in ("q_proj", "v_proj"):
        assert name in reply.failure.message


def test_the_tied_output_layer_is_no_target() -> None:
    data, config = make_data(), make_config(**{"lora.targets": "lm_head"})

    reply = LocalSite(data).execute(Instruction(Action.DESCRIBE, "north", config))

    assert reply.failure is not None
    assert "tied to another module's" in reply.failure.message


# After the run ---------------------------------------------------------------------------------


def noisy(config: RunConfig) -> Any:
    """The resident model with an adapter that changes its logits."""
    resident = load_resident(config, [])
    rng = np.random.default_rng(0)
    adapter = resident.parameters.initial(0).map(
        lambda _, x: (0.3 * rng.standard_normal(x.shape)).astype(np.float32)
    )
    resident.parameters.load(adapter)
    return resident, adapter


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=torch.arange(40).reshape(2, 20)).logits  # type: ignore[no-any-return]


def test_the_adapter_loads_with_plain_peft_and_gives_the_same_logits(tmp_path: Path) -> None:
    resident, adapter = noisy(make_config())
    save_peft(adapter, tmp_path / "adapter", resident.peft_config, "")

    base = AutoModelForCausalLM.from_pretrained(tiny_decoder(), dtype=torch.float32)
    before = logits(base)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()

    assert torch.equal(logits(model), logits(resident.model))
    assert not torch.allclose(logits(model), before, atol=0.1)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["task_type"] == "CAUSAL_LM"
    assert settings["modules_to_save"] in (None, [])


def test_the_merged_folder_writes_with_its_chat_template_and_without_peft(tmp_path: Path) -> None:
    config = make_config(**{"output-dir": str(tmp_path / "runs"), "name": "one"})
    resident, adapter = noisy(config)
    folder = RunFolder.create(config)
    sites = {"north": {"label_map": [], "base_model_digest": resident.base_digest}}
    folder.write_config(config, {}, sites=sites)
    save_peft(adapter, folder.adapter, resident.peft_config, "# card\n")

    merged = merge_into_base(folder.path, tmp_path / "merged")

    model = AutoModelForCausalLM.from_pretrained(merged).eval()
    assert torch.allclose(logits(model), logits(resident.model), atol=2e-4)
    tokenizer = AutoTokenizer.from_pretrained(merged)
    turn = [{"role": "user", "content": "BP?"}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>BP?<|end|><|assistant|>"
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    resident.parameters.load(adapter)
    inner = resident.model.get_base_model()
    answers = [m.generate(ids, max_new_tokens=5, do_sample=False).tolist() for m in (model, inner)]
    assert answers[0] == answers[1]
