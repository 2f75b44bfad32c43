"""Linear layers of forward passes by oneDNN: the same numbers, and only where they are plain."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from client_app.fast_linear import SMALLEST, _OneDnn, fast_linear

CPU = torch.device("cpu")
SIDE = int(SMALLEST**0.5)


@pytest.fixture
def called(monkeypatch):
    """Inputs that oneDNN was given."""
    found, real = [], torch.ops.mkldnn._linear_pointwise

    def spy(x, *rest):
        found.append(x)
        return real(x, *rest)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", spy)
    return found


def layer(inputs=SIDE, outputs=SIDE, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, SIDE), (7, SIDE), (3, 5, SIDE), (SIDE,)])
def test_the_numbers_are_those_of_double_precision_to_rounding(called, bias, shape):
    linear, x = layer(bias=bias), torch.randn(shape)
    exact = functional.linear(
        x.double(), linear.weight.double(), linear.bias.double() if bias else None
    )

    with torch.inference_mode(), fast_linear(linear, CPU):
        got = linear(x)

    assert len(called) == 1
    assert got.shape == exact.shape
    assert (got - exact).abs().max() < 1e-5
    again = linear(x)
    assert len(called) == 1, "and nothing outside the context"
    assert torch.allclose(got, again, atol=1e-5)


def test_inputs_and_weights_may_be_views(called):
    linear = layer()
    linear.weight = nn.Parameter(torch.randn(SIDE, SIDE).t())
    x = torch.randn(SIDE, 6, 4).permute(2, 1, 0)
    exact = functional.linear(x.double(), linear.weight.double(), linear.bias.double())

    with torch.inference_mode(), fast_linear(linear, CPU):
        got = linear(x)

    assert len(called) == 1
    assert (got - exact).abs().max() < 1e-4


@pytest.mark.parametrize("why", ["gradients", "autocast", "double", "empty", "small", "subclass"])
def test_what_is_not_plain_is_left_to_pytorch(called, why):
    class Own(torch.Tensor):
        pass

    linear = layer(8, 8) if why == "small" else layer()
    x = torch.randn(0 if why == "empty" else 2, linear.in_features)
    if why == "double":
        linear, x = linear.double(), x.double()
    if why == "subclass":
        x = x.as_subclass(Own)
    plain = linear(x)
    grad = torch.enable_grad() if why == "gradients" else torch.no_grad()
    cast = torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast")

    with grad, cast, _OneDnn():
        got = linear(x)

    assert not called
    if why == "gradients":
        got.sum().backward()
        assert linear.weight.grad is not None
    assert torch.allclose(got.to(plain.dtype), plain, atol=0.05 if why == "autocast" else 0.0)


def test_a_model_without_large_layers_and_another_device_are_left_alone():
    small = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(1, 1, 1))

    assert not isinstance(fast_linear(small, CPU), _OneDnn)
    assert not isinstance(fast_linear(layer(), torch.device("meta")), _OneDnn)
    assert isinstance(fast_linear(nn.Sequential(small, layer()), CPU), _OneDnn)


def test_without_the_operator_everything_is_as_it_was(monkeypatch):
    monkeypatch.setattr("client_app.fast_linear._linear", lambda: None)

    assert not isinstance(fast_linear(layer(), CPU), _OneDnn)
