"""Tasks on images: batches, losses, features, metrics against plain loops, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import NETS, TASKS, records
from safetensors.torch import save_file

from client_app.evaluation import evaluate
from client_app.image_nets import build_net, save_net
from client_app.models import ResidentModel, load_resident
from client_app.tasks.base import ComparableTask
from client_app.tasks.segmentation_scores import SegmentationScores
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DataError

BOTH = list(TASKS)


def resident_of(task: str, **flat: Any) -> tuple[ResidentModel, RunConfig]:
    settings = {"method": "fedavg", "model.trainable": "all", "model.source": NETS[task], **flat}
    config = RunConfig.from_flat({"model.task": task, **settings})
    resident = load_resident(config, TASKS[task])
    resident.parameters.load(resident.parameters.initial(0))
    return resident, config


@pytest.mark.parametrize("task", BOTH)
def test_a_batch_holds_pixels_of_0_to_1_and_the_answers(task: str) -> None:
    resident, _ = resident_of(task)
    made = records(task, 5)

    batch = resident.task.collate(resident.task.prepare(made))

    pixels = np.stack([record["image"][:, :, 0] for record in made]) / 255
    np.testing.assert_allclose(batch["pixel_values"][:, 0], pixels, rtol=1e-6)
    answers = [record.get("label", record.get("mask")) for record in made]
    assert torch.equal(batch["labels"], torch.from_numpy(np.array(answers)).long())
    assert batch["pixel_values"].dtype == torch.float32


@pytest.mark.parametrize("task", BOTH)
def test_the_loss_is_the_mean_over_every_answer(task: str) -> None:
    resident, _ = resident_of(task)
    batch = resident.task.collate(resident.task.prepare(records(task, 4)))

    loss = float(resident.task.loss(resident.model, batch).detach())

    with torch.no_grad():
        logits = resident.model(batch["pixel_values"]).double()
    chances = logits.softmax(1).movedim(1, -1).reshape(-1, logits.shape[1])
    right = [-float(p[y].log()) for p, y in zip(chances, batch["labels"].flatten(), strict=True)]
    assert loss == pytest.approx(sum(right) / len(right), rel=1e-5)


@pytest.mark.parametrize(
    ("task", "trainable"),
    # A U-Net has no linear layer that could get a pair.
    [*((task, "all") for task in BOTH), ("image-classification", "lora")],
)
def test_what_goes_into_the_last_layer_are_the_features(task: str, trainable: str) -> None:
    """With LoRA as without: a site compares two models on them."""
    resident, _ = resident_of(task, **{"model.trainable": trainable, "lora.targets": "hidden"})
    assert isinstance(resident.task, ComparableTask)
    batch = resident.task.collate(resident.task.prepare(records(task, 5)))
    head: Any = resident.task.last_layer(resident.model)
    seen: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))

    with torch.inference_mode():
        logits = resident.task.output(resident.model, batch)
        again = head(seen[0])
    hook.remove()

    torch.testing.assert_close(again, logits)
    shape = (seen[0].shape[0], *seen[0].shape[2:])
    valid, labels = resident.task.counted(batch, shape)
    assert valid.shape == shape
    assert bool(valid.all())
    assert torch.equal(labels, batch["labels"].flatten())
    named = dict(resident.parameters.named_arrays())
    assert head.weight is named["head.weight"]


def test_dice_and_its_kin_against_loops_over_pixels() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((5, 4, 6, 7))).float()
    logits[:, 3] = -50  # predicted nowhere
    labels = torch.from_numpy(rng.integers(0, 3, (5, 6, 7)))  # and true nowhere
    scores = SegmentationScores(4, torch.device("cpu"))
    scores.update(logits[:2], {"labels": labels[:2]})
    scores.update(logits[2:], {"labels": labels[2:]})

    got = scores.compute()

    found = logits.argmax(1)
    dice, iou = [], []
    for c in (1, 2):
        both = either = one = 0
        for p, y in zip(found.flatten().tolist(), labels.flatten().tolist(), strict=True):
            both += p == c and y == c
            either += p == c or y == c
            one += (p == c) + (y == c)
        dice.append(2 * both / one)
        iou.append(both / either)
    chances = logits.double().softmax(1)
    losses = [
        -float(chances[i, labels[i, r, c], r, c].log()) for i, r, c in np.ndindex(*labels.shape)
    ]
    assert got == pytest.approx(
        {
            "dice": np.mean(dice),
            "iou": np.mean(iou),
            "pixel_accuracy": float((found == labels).double().mean()),
            "loss": np.mean(losses),
            "examples": 5.0,
        },
        rel=1e-5,
    )


def test_where_there_is_nothing_to_find_there_is_no_dice() -> None:
    scores = SegmentationScores(2, torch.device("cpu"))
    assert scores.compute() == {"examples": 0.0}
    logits = torch.stack([torch.ones(1, 4, 4), torch.zeros(1, 4, 4)], dim=1)
    scores.update(logits, {"labels": torch.zeros(1, 4, 4, dtype=torch.int64)})

    assert set(scores.compute()) == {"loss", "pixel_accuracy", "examples"}


@pytest.mark.parametrize("task", BOTH)
def test_an_evaluation_reports_what_the_task_announces(task: str) -> None:
    resident, config = resident_of(task)
    items = resident.task.prepare(records(task, 9))

    metrics = evaluate(resident, items, config, resident.device)

    assert metrics["examples"] == 9
    names = {"accuracy", "auc", "f1"} if "class" in task else {"dice", "iou", "pixel_accuracy"}
    assert set(metrics) == names | {"loss", "examples"}


def test_images_that_do_not_fit_the_net_are_refused(tmp_path: Path) -> None:
    resident, _ = resident_of("image-classification")
    colour = [{"image": np.zeros((8, 8, 3), np.uint8), "label": 0}]
    with pytest.raises(
        DataError, match=r"have 3 channels, but the network of model.source takes 1"
    ):
        resident.task.prepare(colour)

    deep = {"image_net": "conv", "channels": 1, "widths": [4] * 4, "pool_after": [1, 2, 3, 4]}
    save_net(build_net(deep, outputs=4), tmp_path, [])
    resident, _ = resident_of("image-classification", **{"model.source": str(tmp_path)})
    with pytest.raises(DataError, match=r"have 8 x 8 pixels, but .* at least 16 x 16"):
        resident.task.prepare(records("image-classification", 1))


def test_a_model_for_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="embedded:tiny-unet is a network for image-segmentation"):
        resident_of("image-classification", **{"model.source": "embedded:tiny-unet"})
    with pytest.raises(ConfigError, match="embedded:tiny-encoder is no network for images"):
        resident_of("image-classification", **{"model.source": "embedded:tiny-encoder"})


def test_damaged_weights_are_one_sentence(tmp_path: Path) -> None:
    save_net(build_net({"image_net": "conv", "channels": 1, "widths": [4]}, 4), tmp_path, [])
    save_file({"body.0.bias": torch.zeros(4)}, tmp_path / "model.safetensors")

    with pytest.raises(ConfigError, match="cannot be loaded for image-classification: its model"):
        resident_of("image-classification", **{"model.source": str(tmp_path)})


def test_batch_normalisation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_net({"image_net": "conv", "channels": 1, "widths": [4]}, 4)
    save_net(net, tmp_path, [])
    net.body.append(torch.nn.BatchNorm1d(16))  # type: ignore[operator]
    monkeypatch.setattr("client_app.tasks.images.read_net", lambda *_: net)

    with pytest.raises(ConfigError, match=r"layer 'body.4' is a BatchNorm1d with running stat"):
        resident_of("image-classification", **{"model.source": str(tmp_path)})
