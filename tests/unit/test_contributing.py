"""The worked example of CONTRIBUTING.md is code that runs against the present seams."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from interface import ROOT
from pydantic import Field
from torch import nn

from fedapp import config as config_module
from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.registry import METHODS, Method, load_half
from server_app.updates import Update

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def block(words: str) -> str:
    (found,) = [b for b in BLOCKS if words in b]
    return str(found)


def run(code: str, **names: Any) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "example", **names}
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), space)
    return space


def test_the_setting_fits_into_the_settings() -> None:
    space = run(block("class NearbySection"), **vars(config_module))
    line = block("nearby: NearbySection").strip()
    code = f"class Config(RunConfig):\n    {line}\n"
    config = run(code, RunConfig=RunConfig, Field=Field, NearbySection=space["NearbySection"])

    built = config["Config"].model_validate({"nearby": {"mu": 0.5}})
    assert built.nearby.mu == 0.5
    with pytest.raises(ValueError, match="mu"):
        config["Config"].model_validate({"nearby": {"mu": -1}})


def test_the_client_half_adds_the_exact_gradient() -> None:
    rule_class = run(block("class Nearby(LocalRule)"))["Nearby"]
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 2, generator=generator))
    parameters = SimpleNamespace(named_arrays=lambda: iter([("classifier.weight", weight)]))
    mu = 0.3
    rule = rule_class(SimpleNamespace(nearby=SimpleNamespace(mu=mu)), parameters)
    start = weight.detach().clone()
    rule.begin({}, {}, 1)
    with torch.no_grad():
        weight += torch.randn(3, 2, generator=generator)

    weight.square().sum().backward()
    rule.transform_gradients()

    free = weight.detach().clone().requires_grad_()
    (free.square().sum() + mu / 2 * (free - start).square().sum()).backward()
    assert free.grad is not None
    torch.testing.assert_close(weight.grad, free.grad)


def test_the_server_half_merges_on_the_base_strategy() -> None:
    strategy = run(block("class Median(BaseStrategy)"))["Median"](RunConfig())
    rng = np.random.default_rng(0)

    def adapter() -> Adapter:
        b_mr, a_rn = (rng.standard_normal(s).astype(np.float32) for s in ((4, 2), (2, 3)))
        return Adapter({"q": LoraPair(b_mr, a_rn, 2.0)})

    sent = [adapter() for _ in range(3)]
    strategy.begin(adapter())
    updates = [Update(f"site {i}", 1.0, pack(a)) for i, a in enumerate(sent)]

    merged = strategy.aggregate(1, updates).adapter

    expected = np.median([a.pairs["q"].b_mr for a in sent], axis=0)
    np.testing.assert_array_equal(merged.pairs["q"].b_mr, expected)


def test_the_algorithm_takes_the_published_steps() -> None:
    space = run(block("class FedYogi(ServerAlgorithm)"))
    b1, b2, eta, tau = (space[name] for name in ("BETA_1", "BETA_2", "ETA", "TAU"))
    strategy = load_half(METHODS["fedavg"].server)(
        RunConfig.from_flat({"method": "fedavg"}), space["FedYogi"](RunConfig())
    )
    rng = np.random.default_rng(0)
    strategy.begin(Adapter({}, {"head": np.zeros(3, np.float32)}))
    w, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for number in (1, 2, 3):
        merged = rng.standard_normal(3).astype(np.float32)
        if number == 3:  # as after a resume
            strategy.load_state_dict(dict(strategy.state_dict()))
        strategy.aggregate(number, [Update("site", 1.0, pack(Adapter({}, {"head": merged})))])
        d = merged - w
        m = b1 * m + (1 - b1) * d
        v = v - (1 - b2) * d**2 * np.sign(v - d**2)
        w = w + eta * m / (np.sqrt(v) + tau)
        np.testing.assert_allclose(strategy.adapter.tensors["head"], w, rtol=1e-4)


def test_the_registry_line_names_a_server_half_that_exists() -> None:
    line = block('"nearby": Method(').strip().rstrip(",")
    (method,) = run(f"methods = {{{line}}}", Method=Method)["methods"].values()
    assert load_half(method.server) is load_half(METHODS["fedavg"].server)
    assert method.client == "client_app.methods.nearby:Nearby"


def test_the_files_and_commands_that_it_names_exist() -> None:
    paths = set(re.findall(r"`((?:fedapp|server_app|client_app|docs|tests|\.ci)/[\w./-]*)", TEXT))
    assert "fedapp/registry.py" in paths
    missing = {p for p in paths if not (ROOT / p).exists()} - {"client_app/methods/nearby.py"}
    assert not missing
