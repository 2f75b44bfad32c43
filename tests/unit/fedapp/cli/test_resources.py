from __future__ import annotations

from typing import Any

import pytest

from fedapp.cli import resources
from fedapp.cli.resources import count_cpus, count_gpus, plan
from fedapp.config import RunConfig
from fedapp.errors import DeviceError


def config(**flat: Any) -> RunConfig:
    return RunConfig.from_flat({k.replace("__", "."): v for k, v in flat.items()})


@pytest.mark.parametrize(
    ("cpus", "sites", "threads", "expected"),
    [
        (1, 4, 0, (4, 1)),
        (2, 4, 0, (4, 1)),
        (16, 4, 0, (4, 4)),
        (64, 4, 0, (4, 8)),  # more threads than a small model can use are left idle
        (8, 100, 0, (64, 1)),
        (8, 1, 0, (1, 8)),
        (8, 4, 1, (4, 1)),
        (2, 4, 16, (4, 2)),  # Ray would wait for ever for CPUs that are not there
    ],
)
def test_cpus_are_shared(cpus: int, sites: int, threads: int, expected: tuple[int, int]) -> None:
    found = plan(config(data__sites=sites, train__threads=threads), cpus, 0)
    assert (found.nodes, found.cpus) == expected
    assert found.gpus == 0.0


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("cpu", 1, 0.0), ("auto", 0, 0.0), ("auto", 1, 1.0), ("cuda", 1, 1.0), ("cuda:0", 2, 1.0)],
)
def test_gpus_are_given_to_those_who_use_them(device: str, gpus: int, expected: float) -> None:
    assert plan(config(train__device=device), 4, gpus).gpus == expected


def test_an_absent_gpu_is_an_error_at_once() -> None:
    with pytest.raises(DeviceError, match=r"train\.device is 'cuda:1' but no NVIDIA GPU"):
        plan(config(train__device="cuda:1"), 4, 0)


@pytest.mark.parametrize("device", ["cuda:1", "cuda:12", "cuda:01"])
def test_a_gpu_that_ray_would_hide_is_refused(device: str) -> None:
    with pytest.raises(DeviceError) as caught:
        plan(config(train__device=device), 4, 16)
    assert f"train.device is '{device}'" in str(caught.value)
    assert "set train.device to cuda" in str(caught.value)
    assert f"CUDA_VISIBLE_DEVICES={int(device[5:])}" in str(caught.value)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, 4), ("2", 1), ("0,3", 2), ("", 0), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3,4,5", 4)],
)
def test_only_gpus_that_cuda_may_use_count(
    visible: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_installed_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert count_gpus() == expected


def test_the_options_are_what_flower_parses() -> None:
    from flwr.common.config import parse_config_args

    options = plan(config(), 2, 0).options()
    assert parse_config_args([options]) == {
        "num-supernodes": 4,
        "client-resources-num-cpus": 1,
        "client-resources-num-gpus": 0.0,
    }


def test_this_machine_is_counted() -> None:
    assert count_cpus() >= 1
    assert count_gpus() >= 0
