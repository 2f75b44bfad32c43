"""Rules and attacks against byzfl 0.0.11, whose answers to seeded draws lie beside this file.

byzfl needs torchvision and seaborn, and is not installed here. The answers are of
``byzfl.aggregators`` (f = 2) and ``byzfl.attacks`` (tau 1.5 for ALIE, 0.5 for IPM) to
``numpy.random.default_rng(seed).standard_normal((9, 5))``. Where it differs from the papers
(docs/agreement.md) the difference is in the test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapp.adapter import Adapter
from fedapp.attacks import alie, flip_sign, ipm
from fedapp.robust.krum import krum, multi_krum
from fedapp.robust.median import median
from fedapp.robust.trimmed_mean import trimmed_mean

ANSWERS = json.loads(Path(__file__).with_name("byzfl_0_0_11.json").read_text(encoding="utf-8"))
FAULTY, Z, EPSILON = 2, 1.5, 0.5


def draw(answer: dict[str, Any]) -> np.ndarray:
    return np.random.default_rng(answer["seed"]).standard_normal((9, 5))


def models(vectors_kp: np.ndarray) -> list[Adapter]:
    return [Adapter({}, {"w": vector_p.astype(np.float32)}) for vector_p in vectors_kp]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"draw {answer['seed']}")
def test_rules_and_attacks_are_those_of_byzfl(answer: dict[str, Any]) -> None:
    drawn_kp = draw(answer)
    known = models(drawn_kp)
    mean_p = drawn_kp.mean(axis=0)

    np.testing.assert_allclose(median(drawn_kp), answer["median"], rtol=1e-12)
    np.testing.assert_allclose(trimmed_mean(drawn_kp, FAULTY), answer["trimmed-mean"], rtol=1e-12)
    # n - f - 2 nearest; byzfl: n - f - 1.
    chosen_p, _ = krum(drawn_kp, FAULTY - 1)
    np.testing.assert_array_equal(chosen_p, answer["krum"])
    several_p, _ = multi_krum(drawn_kp, FAULTY - 1, count=9 - FAULTY)
    np.testing.assert_allclose(several_p, answer["multi-krum"], rtol=1e-12)
    np.testing.assert_allclose(ipm(known, EPSILON).tensors["w"], answer["ipm"], rtol=1e-5)
    of_the_mean = flip_sign(models(mean_p[None])[0]).tensors["w"]
    np.testing.assert_allclose(of_the_mean, answer["sign-flip"], rtol=1e-5)
    # mean - z std with the deviation of a population; byzfl: mean + z std, of a sample.
    ours_p = mean_p - alie(known, Z).tensors["w"]
    theirs_p = (np.array(answer["alie"]) - mean_p) * np.sqrt(8 / 9)
    np.testing.assert_allclose(ours_p, theirs_p, rtol=1e-4)
