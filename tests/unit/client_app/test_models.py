import logging
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import save_family

import client_app.models as models
from client_app.models import forget_models, load_resident
from client_app.sources import resolve_model
from fedapp.config import RunConfig
from fedapp.errors import ConfigError

LABELS = ["no", "yes"]


def make_config(**changes):
    return RunConfig.from_flat(
        {"model.source": "embedded:tiny-encoder"}
        | {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    )


@pytest.fixture
def loads(monkeypatch):
    """Count how often a base is loaded, from an empty cache."""
    calls, original = [], models.load_base
    monkeypatch.setattr(models, "load_base", lambda *args: (calls.append(args), original(*args))[1])
    forget_models()
    yield calls
    forget_models()


def test_it_is_loaded_once_per_process_whatever_does_not_concern_it(loads):
    before = models.base_loads()
    first = load_resident(make_config(), LABELS)
    same = make_config(seed=3, method="fedavg", train__learning_rate=1.0, data__sites=2)
    assert load_resident(same, tuple(LABELS)) is first
    assert len(loads) == models.base_loads() - before == 1


def test_other_lora_settings_share_the_frozen_weights(loads):
    first = load_resident(make_config(), LABELS)
    before = first.parameters.read().digest()
    second = load_resident(make_config(lora__rank=2, lora__targets="query"), LABELS)
    assert len(loads) == 1
    assert second is not first

    def weights(resident):
        return {
            name.replace("base_layer.", ""): parameter
            for name, parameter in resident.model.named_parameters()
            if not parameter.requires_grad
        }

    mine, theirs = weights(first), weights(second)
    assert mine.keys() == theirs.keys()
    assert all(mine[name] is theirs[name] for name in mine)
    second.parameters.load(second.parameters.initial(9))
    assert first.parameters.read().digest() == before
    assert load_resident(make_config(), LABELS) is first


def test_the_cache_is_bounded(loads):
    residents = [load_resident(make_config(), list("abcdefgh")[:n]) for n in (2, 3, 4)]
    assert len(models._CACHE.bases) == 2
    assert load_resident(make_config(), list("abcd")) is residents[2]
    assert load_resident(make_config(), list("ab")) is not residents[0]
    for rank in range(1, 12):
        load_resident(make_config(lora__rank=rank), list("ab"))
    assert len(models._CACHE.residents) == 8
    assert len(loads) == 4


def test_changed_weights_are_another_model(loads, tmp_path):
    folder, _ = save_family("bert", tmp_path / "m")
    config = make_config(model__source=str(folder))
    first = load_resident(config, LABELS)
    weights = load_file(folder / "model.safetensors")
    weights["pooler.dense.bias"] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    second = load_resident(config, LABELS)
    assert second.base_digest != first.base_digest == first.source.digest
    assert torch.equal(
        second.model.base_model.model.bert.pooler.dense.bias,
        first.model.base_model.model.bert.pooler.dense.bias + 1,
    )


def test_what_a_resident_says_of_itself():
    resident = load_resident(make_config(lora__rank=4, lora__alpha=6), LABELS)
    assert resident.device == torch.device("cpu")
    assert resident.base_digest == resolve_model("embedded:tiny-encoder").digest
    assert not resident.model.training
    exported = resident.peft_config
    assert (exported["r"], exported["lora_alpha"]) == (4, 6)
    assert exported["target_modules"] == ["query", "value"]
    assert exported["modules_to_save"] == ["classifier"]
    assert exported["base_model_name_or_path"] == "embedded:tiny-encoder"
    assert (exported["task_type"], exported["peft_type"]) == ("SEQ_CLS", "LORA")


ANOTHER_PROCESS = """
import torch
from client_app.models import load_resident
from fedapp.config import RunConfig
torch.manual_seed(123)
resident = load_resident(RunConfig(), ["no", "yes"])
print(torch.get_num_threads(), resident.parameters.initial(5).digest())
"""


def test_another_process_is_silent_and_agrees():
    """Neither a progress bar nor a warning is printed, and the initial adapter is the same."""
    threads = 1 if torch.get_num_threads() > 1 else 2
    run = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS],
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",  # else slow where other programs have the cores
            "PYTHONHASHSEED": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    digest = load_resident(RunConfig(), LABELS).parameters.initial(5).digest()
    assert (run.stdout, run.stderr) == (f"{threads} {digest}\n", "")


def test_transformers_speaks_again_afterwards():
    from transformers.utils import logging as transformers_logging

    forget_models()
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_resident(make_config(), LABELS)
    after = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    assert after == before
    assert before[0] <= logging.WARNING


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path):
    folder, _ = save_family("bert", tmp_path / "m")
    (folder / "config.json").write_text('{"model_type": "vit", "hidden_size": 32}')
    with pytest.raises(ConfigError, match="cannot be loaded for sequence-classification") as caught:
        load_resident(make_config(model__source=str(folder)), LABELS)
    assert "\n" not in str(caught.value)


def test_truncated_weights_are_one_sentence(tmp_path):
    folder, _ = save_family("bert", tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_resident(make_config(model__source=str(folder)), LABELS)


def test_weights_of_another_model_are_refused(tmp_path):
    folder, _ = save_family("bert", tmp_path / "m")
    other, _ = save_family("distilbert", tmp_path / "other")
    (other / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"do not belong to its config\.json"):
        load_resident(make_config(model__source=str(folder)), LABELS)


def test_four_bit_without_its_package_says_what_to_install(monkeypatch):
    from client_app import base_model

    monkeypatch.setattr(base_model.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedapp\[cuda\]'"):
        base_model._four_bit(torch.device("cuda", 0))


@pytest.mark.gpu
def test_four_bit_base_with_an_fp32_adapter():
    config = make_config(model__quantization="4bit", train__device="cuda")
    resident = load_resident(config, LABELS)
    kinds = {type(module).__name__ for module in resident.model.modules()}
    assert "Linear4bit" in kinds
    resident.parameters.load(resident.parameters.initial(0))
    batch = resident.task.collate(resident.task.prepare([{"text": "angina", "label": 1}]))
    batch = {key: value.to(resident.device) for key, value in batch.items()}
    resident.task.loss(resident.model, batch).backward()
    assert all(p.grad.isfinite().all() for _, p in resident.parameters.named_arrays())
