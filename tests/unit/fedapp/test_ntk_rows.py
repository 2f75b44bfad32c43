"""Rows of token-level and convolutional heads: the same positions, and the right kernel."""

import numpy as np
import pytest
import torch

from fedapp.ntk import alignment, kernel
from fedapp.ntk_rows import select_positions


def test_positions_are_valid_distinct_sorted_and_seeded():
    valid = np.random.default_rng(0).random((6, 20)) < 0.5

    chosen = select_positions(valid, 25, seed=(0, 3))

    assert len(chosen) == len(set(chosen.tolist())) == 25
    assert valid.ravel()[chosen].all()
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, select_positions(valid, 25, seed=(0, 3)))
    assert (chosen != select_positions(valid, 25, seed=(0, 4))).any()
    np.testing.assert_array_equal(select_positions(valid, 500, 0), np.flatnonzero(valid))
    assert len(select_positions(np.zeros((2, 2), bool), 5, 0)) == 0
    with pytest.raises(ValueError, match="limit"):
        select_positions(valid, 0, 0)


def test_every_position_is_chosen_alike():
    counts = np.zeros(10)
    for seed in range(2000):
        counts[select_positions(np.ones((2, 5), bool), 3, seed)] += 1

    np.testing.assert_allclose(counts, 600, atol=90)


def conv_jacobian(head, maps):
    """Derivatives of all outputs in the 1 x 1 convolution's parameters, (b, C, h, w, p)."""
    values = tuple(parameter.detach() for parameter in head.parameters())
    parts = torch.autograd.functional.jacobian(
        lambda weight, bias: torch.nn.functional.conv2d(maps, weight, bias), values
    )
    return torch.cat([part.flatten(4) for part in parts], dim=4).numpy()


def test_the_kernel_of_a_convolution_has_its_pixels_as_rows():
    torch.manual_seed(0)
    head = torch.nn.Conv2d(4, 3, 1).double()
    maps = [torch.rand(5, 4, 3, 2, dtype=torch.float64) for _ in range(2)]
    by_pixel = []
    for one in maps:
        jac = conv_jacobian(head, one)
        pixels = np.moveaxis(jac, 1, 3).reshape(5 * 3 * 2, 3, -1)
        by_pixel.append(np.einsum("acp,bcp->ab", pixels, pixels))

    rows = len(by_pixel[0])
    h = np.eye(rows) - 1 / rows
    i, j = (h @ k @ h for k in by_pixel)
    oracle = np.sum(i * j) / np.linalg.norm(i) / np.linalg.norm(j)

    everywhere = select_positions(np.ones((5, 3, 2), bool), 100, 0)
    pixels = [one.movedim(1, -1).reshape(-1, 4).numpy()[everywhere] for one in maps]
    assert alignment(*map(kernel, pixels)) == pytest.approx(oracle, abs=1e-12)
