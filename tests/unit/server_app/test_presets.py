"""The presets in benchmarks/presets are valid settings and say what their names promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapp.config import RunConfig

PRESETS = Path(__file__).parents[3] / "benchmarks" / "presets"


def load(name: str) -> RunConfig:
    return RunConfig.from_toml(PRESETS / f"{name}.toml")


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_preset_is_valid_and_survives_the_wire(path: Path) -> None:
    config = RunConfig.from_toml(path)

    assert RunConfig.from_json(config.to_json()) == config


def test_there_are_presets() -> None:
    assert len(list(PRESETS.glob("*.toml"))) >= 3


def test_paper() -> None:
    config = load("subspace-reg-paper")

    assert (config.method, config.subspace_reg.mu, config.subspace_reg.alpha) == (
        "subspace-reg",
        0.1,
        0.01,
    )
    assert (config.train.local_epochs, config.train.learning_rate) == (3, 2e-4)
    assert not config.subspace_reg.average_layers
    assert config.federation.fraction == 1.0


def test_released() -> None:
    config = load("subspace-reg-released")
    method = config.subspace_reg

    assert (method.mu, method.alpha, method.lambda_) == (0.05, 0.01, 1e-5)
    assert method.average_layers
    assert method.preserve_norm == "split"
    assert method.norm_cap == 15.0
    assert (config.train.learning_rate, config.federation.fraction) == (1e-4, 0.3)
    assert config.train.max_steps == 4


def test_the_ablation_differs_from_the_released_settings_in_mu_and_alpha_alone() -> None:
    released = load("subspace-reg-released").to_flat()
    ablation = load("subspace-reg-ablation").to_flat()

    changed = {key: value for key, value in ablation.items() if value != released[key]}

    assert changed == {"subspace-reg.mu": 0.0, "subspace-reg.alpha": 0.0}


def test_pflalign_is_as_printed() -> None:
    config = load("pflalign-paper")
    method = config.pflalign

    assert (config.method, method.beta, method.eps) == ("pflalign", 0.9, 1e-12)
    assert (method.base, method.factor, method.gate) == ("sgd", "recursion", "coordinate")
    assert not method.bias_correction
    assert (config.train.clip_norm, config.train.weight_decay) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["digits", "writers", "brain"])
def test_networks_for_images_are_trained_whole(name: str) -> None:
    config = load(name)

    assert (config.method, config.model.trainable) == ("fedavg", "all")
    segmentation = config.model.task == "image-segmentation"
    assert config.model.source == "embedded:" + (
        "tiny-unet" if segmentation else {"digits": "tiny-cnn", "writers": "conv4"}[name]
    )
    assert config.data.partition == {"digits": "dirichlet", "writers": "groups"}.get(
        name, "natural"
    )
