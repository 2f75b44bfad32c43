"""What a site scores its peers by, against autograd Jacobians of heads with and without a bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedapp.ntk import alignment, kernel
from fedapp.peer_rules.agreement import Agreement, Yardstick
from fedapp.peer_rules.base import View

ROWS, WIDTH = 10, 5


class Model:
    """Features as they are, and a linear head on them, in fp64."""

    def __init__(self, seed: int, bias: bool, classes: int) -> None:
        rng = np.random.default_rng(seed)
        # A common part, so that the bias column is no small thing, nor a large one.
        self.features_nd = 0.3 + rng.standard_normal((ROWS, WIDTH))
        self.parameters = [torch.from_numpy(rng.standard_normal((classes, WIDTH)))]
        if bias:
            self.parameters.append(torch.from_numpy(rng.standard_normal(classes)))

    def outputs(self, *parameters: torch.Tensor) -> torch.Tensor:
        weight_cd, *bias = parameters
        logits = torch.from_numpy(self.features_nd) @ weight_cd.T
        return logits + bias[0] if bias else logits

    def view(self) -> View:
        logits_nc = self.outputs(*self.parameters).numpy()
        labels = np.zeros(ROWS, np.int64)
        return View(self.features_nd, logits_nc, labels, has_bias=len(self.parameters) == 2)

    def jacobian(self, softmax: bool) -> Any:
        """Derivatives of all outputs, (n, C, parameters)."""

        def outputs(*parameters: torch.Tensor) -> torch.Tensor:
            logits = self.outputs(*parameters)
            return torch.softmax(logits, dim=1) if softmax else logits

        parts = torch.autograd.functional.jacobian(outputs, tuple(self.parameters))  # type: ignore[no-untyped-call]
        return torch.cat([part.flatten(2) for part in parts], dim=2).numpy()


def oracle(one: Model, other: Model, agreement: str, classes: int) -> float:
    jacobians = [model.jacobian(agreement != "logits") for model in (one, other)]
    centre = np.eye(ROWS) - 1 / ROWS
    if agreement == "softmax-full":
        centre = np.kron(centre, np.eye(classes))
        kernels = [(flat := jac.reshape(ROWS * classes, -1)) @ flat.T for jac in jacobians]
    else:
        kernels = [np.einsum("acp,bcp->ab", jac, jac) for jac in jacobians]
    i, j = (centre @ each @ centre for each in kernels)
    return float(np.sum(i * j) / (np.linalg.norm(i) * np.linalg.norm(j)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("agreement", ["logits", "softmax-trace", "softmax-full"])
def test_the_score_is_that_of_the_heads_own_derivatives(
    agreement: Agreement, classes: int, bias: bool
) -> None:
    one, other = (Model(seed, bias, classes) for seed in (0, 1))

    score = Yardstick(one.view(), agreement).score(other.view())

    assert score == pytest.approx(oracle(one, other, agreement, classes), abs=1e-12)


@pytest.mark.parametrize("kind", ["softmax_trace", "softmax_full"])
def test_a_bias_that_is_not_there_would_change_the_score(kind: Any) -> None:
    """Or the test above could not tell."""
    views = [Model(seed, False, 3).view() for seed in (0, 1)]
    scores = [
        alignment(*(kernel(v.features_nd, v.logits_nc, kind=kind, bias=bias) for v in views))
        for bias in (True, False)
    ]
    assert abs(scores[0] - scores[1]) > 1e-3
