"""The networks for images: features and head, sizes, and what their folders hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import avg_pool2d, conv2d, group_norm, linear, max_pool2d

from client_app.image_nets import build_net, load_net, read_net, save_net
from client_app.tiny_models import conv4, tiny_cnn, tiny_unet
from client_app.tiny_models.images import SETTINGS

FOLDERS = {"tiny-cnn": tiny_cnn, "conv4": conv4, "tiny-unet": tiny_unet}


def images(count: int = 3, side: tuple[int, int] = (8, 8), seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, *side, generator=generator)


def test_four_convolutions_are_what_their_name_says() -> None:
    net = load_net("embedded:conv4", outputs=10)
    w = net.state_dict()
    x = images()

    for layer in (0, 2):
        x = conv2d(x, w[f"body.{layer}.weight"], w[f"body.{layer}.bias"], padding=1).relu()
    x = max_pool2d(x, 2)
    for layer in (5, 7):
        x = conv2d(x, w[f"body.{layer}.weight"], w[f"body.{layer}.bias"], padding=1).relu()
    x = avg_pool2d(max_pool2d(x, 2), 1).flatten(1)  # 8 x 8 comes to the grid of 2 x 2 by itself
    phi = linear(x, w["hidden.weight"], w["hidden.bias"]).relu()

    assert phi.shape == (3, 128)
    torch.testing.assert_close(net.features(images()), phi)
    torch.testing.assert_close(net(images()), linear(phi, w["head.weight"], w["head.bias"]))


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("side", [(8, 8), (13, 9), (28, 28)])
def test_the_head_is_linear_in_the_features_at_every_size(name: str, side: tuple[int, int]) -> None:
    net = read_net(FOLDERS[name](), outputs=3).eval()
    with torch.no_grad():
        phi, logits = net.features(images(side=side)), net(pixel_values=images(side=side))

    weight = net.head.weight.flatten(1)
    expected = torch.einsum("bd...,cd->bc...", phi, weight)
    expected += net.head.bias.reshape(1, -1, *[1] * (phi.dim() - 2))
    torch.testing.assert_close(logits, expected)
    assert logits.shape == ((3, 3, *side) if name == "tiny-unet" else (3, 3))


def test_a_block_of_the_u_net_has_group_normalisation_and_no_running_statistics() -> None:
    net = read_net(tiny_unet(), outputs=3)
    w = net.state_dict()
    x = images()

    for layer in (0, 3):
        x = conv2d(x, w[f"down.0.{layer}.weight"], padding=1)
        scale, shift = w[f"down.0.{layer + 1}.weight"], w[f"down.0.{layer + 1}.bias"]
        x = group_norm(x, 4, scale, shift).relu()

    torch.testing.assert_close(net.down[0](images()), x)  # type: ignore[index, operator]
    assert list(net.buffers()) == []


def test_pixels_far_away_reach_the_answer() -> None:
    """Down and up again: the lowest level sees the whole image."""
    net = read_net(tiny_unet(), outputs=2).eval()
    pixels = images(1, (16, 16)).requires_grad_()

    net(pixels)[0, 1, 0, 0].backward()

    assert pixels.grad is not None
    assert float(pixels.grad[0, 0, 13:, 13:].abs().sum()) > 0


@pytest.mark.parametrize("name", FOLDERS)
def test_an_untrained_net_is_drawn_as_a_whole_and_a_trained_one_is_read(
    name: str, tmp_path: Path
) -> None:
    net = read_net(FOLDERS[name](), outputs=3)
    assert net.drawn == set(net.state_dict())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5)

    save_net(net, tmp_path, ["a", "b", "c"])
    again, other = read_net(tmp_path, outputs=3), read_net(tmp_path, outputs=5)

    assert again.drawn == set()
    assert all(torch.equal(again.state_dict()[k], v) for k, v in net.state_dict().items())
    assert other.drawn == {"head.weight", "head.bias"}
    assert json.loads((tmp_path / "config.json").read_text())["labels"] == ["a", "b", "c"]


def test_the_folders_are_the_same_on_every_machine() -> None:
    """Weights of the variance 2 / fan_in, biases of zero, from numpy's seeded generators."""
    found = load_file(conv4() / "model.safetensors")

    assert not any(name.startswith("head.") for name in found)
    assert float(found["hidden.weight"].std()) == pytest.approx((2 / 128) ** 0.5, rel=0.05)
    assert float(found["body.7.weight"].std()) == pytest.approx((2 / 288) ** 0.5, rel=0.05)
    assert float(found["body.7.bias"].abs().sum()) == 0
    scale = load_file(tiny_unet() / "model.safetensors")["down.0.1.weight"]
    assert np.array_equal(scale.numpy(), np.ones(8, np.float32))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image_net": "resnet"}, "'image_net': Input should be 'conv' or 'unet'"),
        ({"channels": 2}, "'channels'"),
        ({"widths": []}, "'widths'"),
        ({"widths": [0]}, "'widths.0'"),
        ({"layers": 3}, "'layers': Extra inputs are not permitted"),
        ({"image_net": "unet", "widths": [6]}, "no multiples of 4"),
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"its config\.json") as caught:
        build_net({**SETTINGS["tiny-cnn"], **change}, outputs=2)

    assert sentence in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "extra", "shape"])
def test_a_file_of_another_net_is_refused(damage: str, tmp_path: Path) -> None:
    tensors = load_file(tiny_cnn() / "model.safetensors")
    if damage == "missing":
        del tensors["body.0.bias"]
    elif damage == "extra":
        tensors["body.9.bias"] = torch.zeros(3)
    else:
        tensors["body.0.bias"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((tiny_cnn() / "config.json").read_text())

    with pytest.raises(ValueError, match=r"'body\.\d\.bias'"):
        read_net(tmp_path, outputs=2)
