"""The four gates, their record, and distances of whole adapters against dense weights."""

import json
import math

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.gates import Decision, Gates, Scores, decide, head_distance, relative_distance

ALL = Gates(kernel=0.85, calibrate=False, prediction=0.2, distance=0.9)
PAPER = Gates(kernel=0.6, calibrate=False, prediction=None, distance=None)


def adapter(seed, scaling=2.0, rank=2):
    rng = np.random.default_rng(seed)
    pairs = {
        name: LoraPair(
            rng.standard_normal((6, rank)).astype(np.float32),
            rng.standard_normal((rank, 5)).astype(np.float32),
            scaling,
        )
        for name in ("q", "v")
    }
    return Adapter(pairs, {"head.weight": rng.standard_normal((3, 4)).astype(np.float32)})


def dense(one):
    parts = [p.scaling * p.b_mr.astype(float) @ p.a_rn for p in one.pairs.values()]
    return np.concatenate([part.ravel() for part in [*parts, *one.tensors.values()]])


# ---- decisions --------------------------------------------------------------------------------


def test_a_peer_passes_on_every_threshold():
    decision = decide("a", Scores(kernel=0.85, prediction=0.2, distance=0.9), ALL)

    assert decision.is_accepted
    assert decision.refused_by == ()


@pytest.mark.parametrize(
    ("scores", "refused_by"),
    [
        (Scores(kernel=0.84, prediction=0.3, distance=0.1), ("kernel",)),
        (Scores(kernel=0.99, prediction=0.19, distance=0.1), ("prediction",)),
        (Scores(kernel=0.99, prediction=0.3, distance=0.91), ("distance",)),
        (Scores(kernel=0.1, prediction=-0.3, distance=2), ("distance", "kernel", "prediction")),
        (
            Scores(kernel=math.nan, prediction=math.nan, distance=math.nan),
            ("distance", "kernel", "prediction"),
        ),
        (Scores(kernel=0.99, prediction=0.3, distance=math.inf), ("distance",)),
    ],
)
def test_every_gate_that_refuses_is_named(scores, refused_by):
    decision = decide("a", scores, ALL)

    assert decision.refused_by == refused_by
    assert not decision.is_accepted
    assert decision.scores is scores


def test_the_papers_gate_is_the_kernel_alone():
    assert decide("a", Scores(kernel=0.6), PAPER).is_accepted
    assert not decide("a", Scores(kernel=0.59, prediction=1, distance=0), PAPER).is_accepted
    assert decide("a", Scores(), Gates(None, False, None, None)).is_accepted


def test_a_calibrated_gate_judges_the_score_above_the_null_level():
    gates = Gates(kernel=0.4, calibrate=True, prediction=None, distance=None)

    passing = decide("a", Scores(kernel=0.91, null=0.8), gates)
    failing = decide("a", Scores(kernel=0.87, null=0.8), gates)

    assert passing.is_accepted
    assert passing.calibrated == pytest.approx(0.55)
    assert failing.refused_by == ("kernel",)


def test_a_model_that_is_not_finite_needs_no_score():
    decision = decide("a", Scores(), ALL, is_finite=False)

    assert decision == Decision("a", ("finite",), Scores(), None)


@pytest.mark.parametrize("missing", ["kernel", "prediction", "distance", "null"])
def test_a_missing_score_is_a_mistake(missing):
    values = {"kernel": 0.9, "null": 0.5, "prediction": 0.5, "distance": 0.1}
    gates = Gates(kernel=0.4, calibrate=True, prediction=0.2, distance=0.9)

    assert decide("a", Scores(**values), gates).is_accepted
    with pytest.raises(ValueError, match=r"peer a: the .* gate is set, but its score is missing"):
        decide("a", Scores(**{**values, missing: None}), gates)


def test_the_record_is_flat_json():
    row = decide("site-3", Scores(kernel=0.9, null=0.8, distance=math.inf), PAPER).row()

    assert json.loads(json.dumps(row, allow_nan=False)) == {
        "peer": "site-3",
        "accepted": True,
        "refused_by": [],
        "kernel": 0.9,
        "null": 0.8,
        "prediction": None,
        "distance": None,
        "head": None,
        "calibrated": pytest.approx(0.5),
    }
    assert decide("a", Scores(kernel=0.1), PAPER).row()["refused_by"] == ["kernel"]


# ---- distance ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_distance_is_that_of_dense_weights(seed):
    own, peer = adapter(seed), adapter(seed + 100, scaling=0.5)
    oracle = np.linalg.norm(dense(peer) - dense(own)) / np.linalg.norm(dense(own))

    assert relative_distance(own, peer) == pytest.approx(oracle, rel=1e-6)
    assert relative_distance(own, adapter(7, rank=3)) == pytest.approx(
        np.linalg.norm(dense(adapter(7, rank=3)) - dense(own)) / np.linalg.norm(dense(own)),
        rel=1e-6,
    )


def test_other_factors_of_the_same_products_are_at_no_distance():
    own = adapter(0)
    turn = np.array([[0.0, -1.0], [1.0, 0.0]], np.float32)
    turned = Adapter(
        {
            name: LoraPair(p.b_mr @ turn, turn.T @ p.a_rn, p.scaling)
            for name, p in own.pairs.items()
        },
        own.tensors,
    )

    assert relative_distance(own, turned) == pytest.approx(0, abs=1e-7)
    assert relative_distance(own, own) == 0


def test_a_flipped_model_is_twice_as_far_as_it_is_long():
    own = adapter(0)
    flipped = Adapter(
        {n: LoraPair(-p.b_mr, p.a_rn, p.scaling) for n, p in own.pairs.items()},
        {n: -t for n, t in own.tensors.items()},
    )

    assert relative_distance(own, flipped) == pytest.approx(2, rel=1e-6)


def test_distances_without_a_number():
    zero = adapter(0).map(lambda _, array: np.zeros_like(array))
    broken = adapter(0).map(lambda _, array: np.full_like(array, np.nan))
    huge = adapter(0).map(lambda _, array: np.full_like(array, 3e38))

    assert relative_distance(zero, zero) == 0
    assert relative_distance(zero, adapter(0)) == math.inf
    assert relative_distance(adapter(0), broken) == math.inf
    assert 1e37 < relative_distance(adapter(0), huge) < math.inf


def test_the_head_is_measured_by_itself():
    own, peer = adapter(0), adapter(1)
    heads = [one.tensors["head.weight"].astype(float) for one in (own, peer)]
    oracle = np.linalg.norm(heads[1] - heads[0]) / np.linalg.norm(heads[0])

    assert head_distance(own, peer) == pytest.approx(oracle)
    assert head_distance(own, Adapter(peer.pairs, own.tensors)) == 0
    assert head_distance(Adapter(own.pairs, {}), Adapter(peer.pairs, {})) == 0, "there is none"


def test_a_head_too_far_is_refused_by_its_own_gate():
    gates = Gates(kernel=None, calibrate=False, prediction=None, distance=3.0, head=1.1)

    assert decide("a", Scores(distance=2.9, head=1.1), gates).is_accepted
    assert decide("a", Scores(distance=1.2, head=1.5), gates).refused_by == ("head",)
    assert decide("a", Scores(distance=0.1, head=math.nan), gates).refused_by == ("head",)
    with pytest.raises(ValueError, match="the head gate is set, but its score is missing"):
        decide("a", Scores(distance=0.1), gates)


def test_another_layout_is_a_mistake():
    own = adapter(0)
    with pytest.raises(ValueError, match="other names"):
        relative_distance(own, Adapter({}, own.tensors))
    with pytest.raises(ValueError, match=r"head.weight: expected shape \(3, 4\), got \(2, 4\)"):
        relative_distance(own, Adapter(own.pairs, {"head.weight": np.ones((2, 4), np.float32)}))
