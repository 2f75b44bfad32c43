"""FedSAM against its published steps on quadratics, and what it leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import heads, parameters_of, quadratic_config, regressions
from torch import nn

from client_app.algorithms.compose import build_rule
from client_app.training import train

LOSSES = [
    (np.diag([2.0, 0.5, 1.0]), np.array([1.0, -2.0, 3.0])),
    (np.diag([1.0, 4.0, 0.3]), np.array([-1.0, 2.0, 0.5])),
]


def test_each_local_step_is_the_published_one() -> None:
    eta, rho, steps = 0.1, 0.4, 5
    config = quadratic_config(federation__algorithm="fedsam", fedsam__rho=rho)
    federation = heads(config, LOSSES, [10, 30], [steps, steps])

    x = np.zeros(3)
    for number in range(1, 5):
        federation.round(number)
        ends = []
        for h, b in LOSSES:
            w = x.copy()
            for _ in range(steps):
                g = h @ (w - b)
                w = w - eta * h @ (w + rho * g / np.linalg.norm(g) - b)
            ends.append(w)
        x = 0.25 * ends[0] + 0.75 * ends[1]
        np.testing.assert_allclose(federation.head, x, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "subspace-reg", "fedsvd"])
def test_without_a_distance_it_is_fedavg_bit_for_bit(method: str) -> None:
    digests = []
    for algorithm, more in (("fedavg", {}), ("fedsam", {"fedsam__rho": 0.0})):
        config = quadratic_config(method=method, federation__algorithm=algorithm, **more)
        federation = regressions(config)
        for number in (1, 2):
            federation.round(number)
        digests.append(federation.strategy.adapter.digest())

    assert digests[0] == digests[1]


def test_the_norm_is_that_of_all_that_is_trained() -> None:
    """Autograd at the point that the definition names, over a pair and a head together."""
    rho = 0.3
    config = quadratic_config(federation__algorithm="fedsam", fedsam__rho=rho)
    federation = regressions(config)
    site = federation.sites[0]
    rng = np.random.default_rng(3)
    start = federation.initial.map(
        lambda _, x: x + 0.5 * rng.standard_normal(x.shape).astype(np.float32)
    )
    live = parameters_of(start.pairs, start.tensors)
    rule = build_rule(config, live)

    def backward() -> torch.Tensor:
        loss: torch.Tensor = site.loss(live)
        loss.backward()
        return loss.detach()

    loss = rule.gradients(backward)

    twin = parameters_of(start.pairs, start.tensors)
    arrays = [p for _, p in twin.named_arrays()]
    own = torch.autograd.grad(site.loss(twin), arrays)
    norm = torch.cat([g.flatten() for g in own]).norm()
    with torch.no_grad():
        for array, g in zip(arrays, own, strict=True):
            array += rho * g / norm
    uphill = torch.autograd.grad(site.loss(twin), arrays)
    for (name, array), expected in zip(live.named_arrays(), uphill, strict=True):
        torch.testing.assert_close(array.grad, expected, rtol=1e-4, atol=1e-5, msg=name)
    assert live.read().digest() == start.digest(), "the weights are where they were, to the bit"
    assert loss.item() == pytest.approx(site.loss(live).item())


def test_a_gradient_of_zero_and_a_frozen_array_are_left_alone() -> None:
    config = quadratic_config(method="ffa-lora", federation__algorithm="fedsam", fedsam__rho=0.5)
    federation = regressions(config)
    a_rn = federation.initial.pairs["q"].a_rn
    federation.round(1)
    np.testing.assert_array_equal(federation.strategy.adapter.pairs["q"].a_rn, a_rn)

    flat = heads(
        quadratic_config(federation__algorithm="fedsam"), [(np.eye(2), np.zeros(2))], [5], [2]
    )
    flat.round(1)
    np.testing.assert_array_equal(flat.head, np.zeros(2))


def test_both_passes_see_the_same_dropout() -> None:
    config = quadratic_config(federation__algorithm="fedsam", fedsam__rho=0.1)
    live = parameters_of({}, {"head.weight": np.ones(50, np.float32)})
    masks: list[torch.Tensor] = []

    def loss(model: Any, batch: Any) -> torch.Tensor:
        masks.append(nn.functional.dropout(torch.ones(50), 0.5))
        return (live.tensors["head.weight"] * masks[-1]).square().sum()

    task = SimpleNamespace(collate=lambda items: {}, loss=loss)
    resident: Any = SimpleNamespace(
        model=nn.Module(), task=task, parameters=live, device=torch.device("cpu")
    )
    rule = build_rule(config, live)
    items = [{"length": 1}] * 2
    train(resident, items, rule, config, seed=1, first_step=0, total_steps=2, epochs=1)

    assert len(masks) == 4
    torch.testing.assert_close(masks[0], masks[1], rtol=0, atol=0)
    torch.testing.assert_close(masks[2], masks[3], rtol=0, atol=0)
    assert not torch.equal(masks[1], masks[2])
