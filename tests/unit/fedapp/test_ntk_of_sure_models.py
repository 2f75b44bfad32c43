"""The softmax kernels of models that are sure, against the same sums with 600 digits."""

import itertools

import mpmath
import numpy as np
import pytest
import torch

from fedapp.ntk import alignment, kernel


def centring(rows):
    return np.eye(rows) - np.ones((rows, rows)) / rows


def sure(gap, classes=3, rows=12):
    """Features, and logits of a model that is that sure of one of two classes."""
    rng = np.random.default_rng(0)
    features, logits = rng.standard_normal((rows, 4)), 0.01 * rng.standard_normal((rows, classes))
    sides = gap * np.where(rng.random(rows) < 0.5, -0.5, 0.5)
    logits[:, :2] += np.stack([sides, -sides], axis=1)[:, :classes]
    return features, logits


def exact_kernel(features, logits, kind):
    """The centred kernel of norm 1 in numbers of 600 digits."""
    with mpmath.workdps(600):
        rows, classes = logits.shape
        powers = [[mpmath.exp(mpmath.mpf(float(z))) for z in row] for row in logits]
        p = [[each / sum(row) for each in row] for row in powers]
        derivatives = [mpmath.matrix(classes, classes) for _ in range(rows)]
        for derivative, row in zip(derivatives, p, strict=True):
            for i, j in itertools.product(range(classes), repeat=2):
                derivative[i, j] = (row[i] if i == j else 0) - row[i] * row[j]
        exact = mpmath.matrix(features.tolist())
        gram = exact * exact.T
        side = rows * (classes if kind == "softmax_full" else 1)
        whole = mpmath.matrix(side, side)
        for a, b in itertools.product(range(rows), repeat=2):
            block = (gram[a, b] + 1) * derivatives[a] * derivatives[b].T
            if kind == "softmax_trace":
                whole[a, b] = sum(block[c, c] for c in range(classes))
            else:
                for i, j in itertools.product(range(classes), repeat=2):
                    whole[a * classes + i, b * classes + j] = block[i, j]
        largest = max(abs(each) for each in whole)
        whole = np.array((whole / largest).tolist(), dtype=float)
    h = np.kron(centring(rows), np.eye(side // rows))
    values = h @ whole @ h
    return values / np.linalg.norm(values)


@pytest.mark.parametrize(
    ("kind", "gap"),
    [*itertools.product(["softmax_full"], [1, 16, 20, 60, 190, 300, 600]),
     *itertools.product(["softmax_trace"], [1, 5, 10])],
)  # fmt: skip
def test_the_softmax_kernels_of_a_model_that_is_sure_are_exact(kind, gap):
    features, logits = sure(gap)
    found = kernel(features, logits, kind=kind)

    assert found.is_informative
    assert found.values == pytest.approx(exact_kernel(features, logits, kind), abs=1e-6)


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize(
    ("kind", "gap"),
    [("softmax_full", 1600), *itertools.product(["softmax_trace"], [40, 80, 200, 380, 800, 1600])],
)
def test_of_outputs_nearly_without_a_gradient_rounding_is_not_believed(kind, gap, classes):
    features, logits = sure(2 * gap if classes == 1 else gap, classes)
    own = np.random.default_rng(1).standard_normal((12, classes))
    sound, saturated = kernel(features, own, kind=kind), kernel(features, logits, kind=kind)

    assert sound.is_informative
    assert not saturated.is_informative
    assert alignment(sound, saturated) == alignment(saturated, saturated) == 0


@pytest.mark.parametrize("kind", ["softmax_trace", "softmax_full"])
def test_a_kernel_of_the_rows_that_have_a_gradient_is_that_of_all(kind):
    """Sure of most rows is not sure of all: the others' part is exact, and theirs nothing."""
    rng = np.random.default_rng(0)
    features, logits = rng.standard_normal((30, 6)), rng.standard_normal((30, 3))
    logits[4:, 0] = 300
    p = torch.softmax(torch.from_numpy(logits), dim=1)
    derivatives = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    gram = torch.from_numpy(features @ features.T + 1)
    if kind == "softmax_trace":
        whole = gram * torch.einsum("acd,bcd->ab", derivatives, derivatives)
    else:
        blocks = torch.einsum("acd,bed->acbe", derivatives, derivatives)
        whole = (gram[:, None, :, None] * blocks).reshape(90, 90)
    h = np.kron(centring(30), np.eye(len(whole) // 30))
    oracle = h @ whole.numpy() @ h

    found = kernel(features, logits, kind=kind)

    assert found.values == pytest.approx(oracle / np.linalg.norm(oracle), abs=1e-10)
