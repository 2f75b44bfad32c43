"""Every weight trained: what is sent, what it begins with, and that the base model stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import NETS, TASKS, site_data
from tiny_families import save_family
from transformers import AutoModel, AutoModelForSequenceClassification

from client_app.data import SiteData
from client_app.export import merge_into_base
from client_app.models import load_resident
from client_app.parameters import AdapterParameters
from client_app.site import LocalSite
from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, Reply, SiteDescription
from fedapp.results import RunFolder
from fedapp.whole_format import save_whole

LABELS = ["no", "yes"]


def config_of(**flat: Any) -> RunConfig:
    usual = {
        "method": "fedavg",
        "model.trainable": "all",
        "model.source": "embedded:tiny-encoder",
        "train.threads": 1,
        "train.local-epochs": 1,
        "train.batch-size": 4,
    }
    return RunConfig.from_flat({**usual, **flat})


def image_config(task: str, **flat: Any) -> RunConfig:
    return config_of(**{"model.task": task, "model.source": NETS[task], **flat})


def ask(
    site: LocalSite, config: RunConfig, action: Action, adapter: Adapter | None = None
) -> Reply:
    payloads = {} if adapter is None else {"adapter": pack(adapter)}
    reply = site.execute(
        Instruction(action, site.data.site, config, 1, payloads=payloads, splits=("validation",))
    )
    assert reply.failure is None, reply.failure
    return reply


def test_a_pretrained_model_begins_with_its_own_weights_and_a_fresh_head() -> None:
    parameters = load_resident(config_of(), LABELS).parameters
    base = AutoModel.from_pretrained(load_resident(config_of(), LABELS).source.path)
    own = {f"bert.{name}": value for name, value in base.named_parameters()}

    first, other = parameters.initial(0), parameters.initial(1)

    assert not first.pairs
    assert set(first.tensors) == {*own, "classifier.weight", "classifier.bias"}
    assert all(np.array_equal(first.tensors[n], v.detach().numpy()) for n, v in own.items())
    assert not np.array_equal(
        first.tensors["classifier.weight"], other.tensors["classifier.weight"]
    )
    same = load_resident(config_of(**{"model.trainable": "lora"}), LABELS).parameters.initial(0)
    assert np.array_equal(first.tensors["classifier.weight"], same.tensors["classifier.weight"])


def test_training_leaves_the_base_model_as_it_was() -> None:
    """Whoever asks for the first model later, or for LoRA, gets the weights of the file."""
    site = LocalSite(
        SiteData(
            "north",
            LABELS,
            {
                name: [{"text": f"pain {i}", "label": i % 2} for i in range(8)]
                for name in ("train", "validation", "test")
            },
        )
    )
    first = ask(site, config_of(), Action.INITIAL).payloads["adapter"].unpack()

    reply = ask(site, config_of(), Action.TRAIN, first)

    trained = reply.payloads["adapter"].unpack()
    moved = [n for n, x in trained.tensors.items() if not np.array_equal(x, first.tensors[n])]
    assert set(trained.tensors) - set(moved) <= {
        # Keys' biases have no gradient behind a softmax, nor have words that occur nowhere.
        name
        for name in trained.tensors
        if name.endswith("key.bias")
    }
    again = ask(site, config_of(), Action.INITIAL).payloads["adapter"].unpack()
    assert again.digest() == first.digest()


@pytest.mark.parametrize("task", TASKS)
def test_a_net_for_images_is_drawn_anew_from_every_seed(task: str) -> None:
    parameters = load_resident(image_config(task), TASKS[task]).parameters

    first, other = parameters.initial(0), parameters.initial(1)

    assert parameters.initial(0).digest() == first.digest()
    for name, array in first.arrays():
        if array.ndim > 1:
            fan_in = np.prod(array.shape[1:])
            # five standard errors of the standard deviation of a normal sample
            assert abs(array.std() / (2 / fan_in) ** 0.5 - 1) < 5 / (2 * array.size) ** 0.5, name
            assert not np.array_equal(array, dict(other.arrays())[name])
        else:
            assert set(array) == ({1.0} if name.endswith("weight") else {0.0}), name


@pytest.mark.parametrize("task", TASKS)
def test_a_site_describes_trains_and_measures(task: str) -> None:
    site, config = LocalSite(site_data(task)), image_config(task)
    told = SiteDescription(**ask(site, config, Action.DESCRIBE).description)
    first = ask(site, config, Action.INITIAL).payloads["adapter"].unpack()

    reply = ask(site, config, Action.TRAIN, first)

    assert told.initial_digest == first.digest()
    assert told.label_map == TASKS[task]
    assert told.peft_config == {"base_model_name_or_path": NETS[task], "task_type": None}
    assert told.notes == []
    assert reply.weight == 16
    measured = "accuracy" if task == "image-classification" else "dice"
    assert measured in reply.metrics["personal/validation"]
    trained = reply.payloads["adapter"].unpack()
    assert trained.layout_digest() == told.layout_digest
    assert all(not np.array_equal(x, first.tensors[n]) for n, x in trained.tensors.items())


def test_a_step_is_that_of_plain_sgd() -> None:
    """One step of SGD on one batch of everything, against autograd on a net built by hand."""
    task = "image-classification"
    config = image_config(
        task,
        **{
            "train.optimizer": "sgd",
            "train.momentum": 0.0,
            "train.weight-decay": 0.0,
            "train.clip-norm": 0.0,
            "train.learning-rate": 0.1,
            "train.batch-size": 16,
        },
    )
    data = site_data(task)
    site = LocalSite(data)
    first = ask(site, config, Action.INITIAL).payloads["adapter"].unpack()
    trained = ask(site, config, Action.TRAIN, first).payloads["adapter"].unpack()

    pixels = torch.tensor(np.stack([r["image"][:, :, 0] for r in data.splits["train"]]) / 255)
    w = {n: torch.tensor(x, dtype=torch.float64, requires_grad=True) for n, x in first.arrays()}
    x = pixels[:, None].double()
    for layer in (0, 3):
        conv = torch.nn.functional.conv2d(
            x, w[f"body.{layer}.weight"], w[f"body.{layer}.bias"], padding=1
        )
        x = torch.nn.functional.max_pool2d(conv.relu(), 2)
    phi = (x.flatten(1) @ w["hidden.weight"].T + w["hidden.bias"]).relu()
    logits = phi @ w["head.weight"].T + w["head.bias"]
    labels = torch.tensor([record["label"] for record in data.splits["train"]])
    torch.nn.functional.cross_entropy(logits, labels).backward()

    for name, array in trained.arrays():
        gradient = w[name].grad
        assert gradient is not None
        expected = (w[name].detach() - 0.1 * gradient).numpy()
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_whole_text_model_is_exported_for_transformers(tmp_path: Path, family: str) -> None:
    """Also one whose words are its output layer: such weights are one tensor."""
    base, _ = save_family(family, tmp_path / "base")
    place = {"output-dir": str(tmp_path / "runs"), "name": "one", "model.source": str(base)}
    config = config_of(**place)
    resident = load_resident(config, LABELS)
    rng = np.random.default_rng(0)
    trained = resident.parameters.initial(0).map(
        lambda _, x: (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    )
    resident.parameters.load(trained)
    folder = RunFolder.create(config)
    sites = {"A": {"label_map": LABELS, "base_model_digest": resident.base_digest}}
    folder.write_config(config, {}, sites=sites)
    save_whole(trained, folder.adapter, "# card\n")

    target = merge_into_base(folder.path, tmp_path / "merged")

    model = AutoModelForSequenceClassification.from_pretrained(target).eval()
    batch = resident.task.collate(resident.task.prepare([{"text": "chest pain", "label": 0}]))
    with torch.inference_mode():
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        expected = resident.task.output(resident.model, batch)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_other_lora_settings_are_the_same_whole_model() -> None:
    first = load_resident(config_of(), LABELS)

    assert load_resident(config_of(**{"lora.rank": 2}), LABELS) is first
    assert isinstance(first.parameters, AdapterParameters)
    assert load_resident(config_of(**{"model.trainable": "lora"}), LABELS) is not first
