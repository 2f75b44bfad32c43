"""Arrays as one vector: spans cover it once, and views share the memory of both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from client_app.distribution import distribution, evenly
from client_app.flat import FlatArrays

SHAPES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=6)


def arrays_of(shapes: list[list[int]]) -> list[tuple[str, Parameter]]:
    return [(f"x{k}", Parameter(torch.rand(shape))) for k, shape in enumerate(shapes)]


@given(shapes=SHAPES, span=st.integers(1, 40))
def test_spans_cover_the_vector_once_and_reach_the_arrays(
    shapes: list[list[int]], span: int
) -> None:
    named = arrays_of(shapes)
    flat = FlatArrays(named, span)
    before = [array.detach().clone() for _, array in named]
    assert flat.size == sum(array.numel() for _, array in named)
    assert [s.start for s in flat.spans] == [0, *(s.stop for s in flat.spans)][:-1]
    assert sum(s.stop - s.start for s in flat.spans) == flat.size
    assert all(s.stop - s.start <= span for s in flat.spans)

    vector = torch.arange(flat.size, dtype=torch.float32)
    for part in flat.spans:
        torch._foreach_add_(part.values(), part.shaped(part.of(vector)))
        torch._foreach_copy_(part.gradients(), part.shaped(part.of(vector)))

    by_name = flat.arrays(vector)
    for (name, array), old in zip(named, before, strict=True):
        assert by_name[name].shape == tuple(array.shape)
        torch.testing.assert_close(array.detach(), old + torch.from_numpy(by_name[name]))
        if array.numel():
            assert torch.equal(array.grad, torch.from_numpy(by_name[name]))  # type: ignore[arg-type]
    assert torch.equal(flat.vector(by_name), vector)
    assert not flat.vector().any()


def test_an_array_without_a_gradient_gets_one_of_zeros() -> None:
    flat = FlatArrays(arrays_of([[2, 3]]))

    (gradient,) = flat.spans[0].gradients()

    assert torch.equal(gradient, torch.zeros(2, 3))
    assert gradient is flat.named[0][1].grad


def test_a_distribution_is_that_of_numpy() -> None:
    values = torch.rand(1001)
    told = distribution("x", values)

    assert list(told) == ["x_mean", "x_p10", "x_p50", "x_p90"]
    array = values.double().numpy()
    expected = [array.mean(), *np.quantile(array, [0.1, 0.5, 0.9])]
    np.testing.assert_allclose(list(told.values()), expected)
    assert distribution("x", torch.zeros(0)) == {}


@pytest.mark.parametrize(
    ("size", "most", "seen"), [(10, 10, 10), (11, 10, 6), (100, 7, 7), (0, 5, 0)]
)
def test_a_long_vector_is_looked_at_evenly(size: int, most: int, seen: int) -> None:
    assert len(torch.zeros(size)[evenly(size, most)]) == seen
