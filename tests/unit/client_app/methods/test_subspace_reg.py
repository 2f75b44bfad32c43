"""The penalty's closed form against autograd of the dense formula."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from client_app.methods.subspace_reg import SubspaceReg, penalty_gradients, penalty_value
from client_app.parameters import LivePair
from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig

SHAPES = {"x.q": (7, 5), "x.v": (7, 5), "y.q": (4, 9)}
RANK = 3


def dense_penalty(b, a, p, q, s, mu, alpha, lam):
    """The formula of the paper as it is printed, with m x n products."""
    product = (s * b @ a - s * p @ q).square().sum()
    size = a.square().sum() + b.square().sum()
    return mu / 2 * product + alpha / 2 * (b - p).square().sum() + lam / 2 * size


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("offset", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize("weights", [(0.3, 0.2, 0.1), (0.7, 0.0, 0.0), (0.0, 0.5, 0.0)])
def test_gradient_and_value_equal_autograd_of_the_dense_formula(offset, weights):
    p, q = draw(1, 2, 7, 3), draw(2, 2, 3, 5)
    b = (p + offset * draw(3, 2, 7, 3)).requires_grad_()
    a = (q + offset * draw(4, 2, 3, 5)).requires_grad_()

    grad_b, grad_a = penalty_gradients(b.detach(), a.detach(), p, q, 1.7, *weights)
    value = penalty_value(b.detach(), a.detach(), p, q, 1.7, *weights)

    expected = dense_penalty(b, a, p, q, 1.7, *weights)
    expected.backward()
    torch.testing.assert_close(grad_b, b.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grad_a, a.grad, rtol=1e-10, atol=1e-12)
    assert value == pytest.approx(expected.item(), rel=1e-9, abs=1e-14)


def test_fp32_keeps_its_digits_near_the_received_product():
    p, q = draw(1, 1, 64, 8), draw(2, 1, 8, 48)
    p32, q32 = p.float(), q.float()
    b32, a32 = (p + 1e-5 * draw(3, 1, 64, 8)).float(), (q + 1e-5 * draw(4, 1, 8, 48)).float()

    grad_b, grad_a = penalty_gradients(b32, a32, p32, q32, 2.0, 0.1, 0.0, 0.0)

    b, a = b32.double().requires_grad_(), a32.double().requires_grad_()
    dense_penalty(b, a, p32.double(), q32.double(), 2.0, 0.1, 0.0, 0.0).backward()
    assert float((grad_b - b.grad).norm() / b.grad.norm()) < 1e-5
    assert float((grad_a - a.grad).norm() / a.grad.norm()) < 1e-5


class FakeParameters:
    """Pairs of two shapes and a head, without a model."""

    def __init__(self, shapes=SHAPES, rank=RANK, dtype=torch.float64):
        self.pairs = {
            name: LivePair(
                nn.Parameter(draw(10 + i, m, rank, dtype=dtype)),
                nn.Parameter(draw(20 + i, rank, n, dtype=dtype)),
                1.5,
            )
            for i, (name, (m, n)) in enumerate(shapes.items())
        }
        self.head = nn.Parameter(draw(30, 4, dtype=dtype))

    def read(self):
        return Adapter(
            {
                name: LoraPair(b.detach().numpy().copy(), a.detach().numpy().copy(), s)
                for name, (b, a, s) in self.pairs.items()
            },
            {"head": self.head.detach().numpy().copy()},
        )

    @torch.no_grad()
    def move(self, by):
        for i, (b, a, _) in enumerate(self.pairs.values()):
            b += by * draw(40 + i, *b.shape, dtype=b.dtype)
            a += by * draw(50 + i, *a.shape, dtype=a.dtype)
        self.head += by


def make_rule(parameters, **flat):
    config = RunConfig.from_flat({f"subspace-reg.{key}": value for key, value in flat.items()})
    rule = SubspaceReg(config, parameters)
    received = {"adapter": parameters.read()}
    rule.begin(received, {}, steps=3)
    return rule, received


@pytest.mark.parametrize("average", [False, True])
def test_the_rule_adds_the_gradient_of_every_pair(average):
    parameters = FakeParameters()
    rule, received = make_rule(
        parameters, mu=0.4, alpha=0.3, **{"lambda": 0.2, "average-layers": average}
    )
    parameters.move(0.1)
    for b, a, _ in parameters.pairs.values():
        b.grad, a.grad = torch.full_like(b, 2.0), torch.full_like(a, 3.0)
    parameters.pairs["x.v"].a_rn.grad = None  # an array the task's loss does not reach

    rule.transform_gradients()

    share, total = (1 / 3 if average else 1.0), 0.0
    for name, pair in parameters.pairs.items():
        start = received["adapter"].pairs[name]
        b = pair.b_mr.detach().clone().requires_grad_()
        a = pair.a_rn.detach().clone().requires_grad_()
        p, q = torch.from_numpy(start.b_mr), torch.from_numpy(start.a_rn)
        loss = share * dense_penalty(b, a, p, q, 1.5, 0.4, 0.3, 0.2)
        loss.backward()
        total += loss.item()
        torch.testing.assert_close(pair.b_mr.grad, b.grad + 2.0)
        torch.testing.assert_close(pair.a_rn.grad, a.grad + (0.0 if name == "x.v" else 3.0))
    rule.finish(received)
    assert rule.numbers()["penalty"] == pytest.approx(total, rel=1e-9)


def test_without_weights_the_gradients_are_untouched():
    parameters = FakeParameters()
    rule, _ = make_rule(parameters, mu=0, alpha=0, **{"lambda": 0})
    parameters.move(0.1)

    rule.transform_gradients()

    assert all(b.grad is None and a.grad is None for b, a, _ in parameters.pairs.values())


def test_nothing_of_size_m_x_n_is_formed():
    m = n = 300
    parameters = FakeParameters({"p": (m, n), "q": (m, n)}, rank=2, dtype=torch.float32)
    rule, received = make_rule(parameters, mu=0.4, alpha=0.3)
    parameters.move(0.1)
    sizes = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(
                x.numel()
                for x in (out if isinstance(out, tuple | list) else [out])
                if isinstance(x, torch.Tensor)
            )
            return out

    with Record():
        rule.transform_gradients()
        rule.finish(received)

    assert 2 * m * 2 <= max(sizes) < m * n / 10


@pytest.mark.parametrize("cap", [0.0, 0.5, 1e6])
def test_norm_cap_shortens_the_change_and_keeps_its_direction(cap):
    parameters = FakeParameters(dtype=torch.float32)
    rule, received = make_rule(parameters, **{"norm-cap": cap})
    parameters.move(0.3)

    update = rule.finish(received)["adapter"]

    start = np.concatenate([x.ravel() for _, x in received["adapter"].arrays()])
    free = np.concatenate([x.ravel() for _, x in parameters.read().arrays()]) - start
    sent = np.concatenate([x.ravel() for _, x in update.arrays()]) - start
    length = min(np.linalg.norm(free), cap or np.inf)
    np.testing.assert_allclose(sent, free * length / np.linalg.norm(free), rtol=1e-4, atol=1e-6)
    assert rule.numbers()["change_norm"] == pytest.approx(np.linalg.norm(free), rel=1e-5)
    assert all(x.dtype == np.float32 for _, x in update.arrays())
