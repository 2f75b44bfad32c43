"""The peer-to-peer baselines as rules: published formulas on models, and honest verdicts."""

import math

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.peer_rules.alone import Alone
from fedapp.peer_rules.average import Average
from fedapp.peer_rules.balance import Balance
from fedapp.peer_rules.base import Context, Neighbour, View
from fedapp.peer_rules.clipping import Clipping
from fedapp.peer_rules.oracle import Oracle
from fedapp.peer_rules.ubar import Ubar
from fedapp.robust.vectors import to_vector

RULES = (Average, Balance, Clipping, Ubar, Alone, Oracle)


def model(seed, spread=1.0):
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(1000)

    def draw(*shape):
        return (base.standard_normal(shape) + spread * rng.standard_normal(shape)).astype("f4")

    return Adapter({"q": LoraPair(draw(4, 2), draw(2, 3), 2.0)}, {"head": draw(2, 4)})


def vector(adapter):
    return to_vector(adapter).astype(float)


def context(config, round=1, losses=None, degrees=None):
    def view(adapter):
        nothing = np.zeros((0, 1))
        return View(nothing, nothing, np.zeros(0, np.int64))

    def loss(adapter):
        return losses(adapter) if losses else float("nan")

    return Context(config, "me", round, view, loss, degrees or {})


def make(**flat):
    given = {key.replace("__", "."): value for key, value in flat.items()}
    return RunConfig.from_flat(given)


def mixed_by(rule, own, others, config=None, **more):
    config = config or make()
    neighbours = [Neighbour(f"peer-{k}", other) for k, other in enumerate(others)]
    return rule(config).mix(own, neighbours, context(config, **more))


OWN, OTHERS = model(0, 0.1), [model(1, 0.1), model(2), model(3, 5.0)]


@pytest.mark.parametrize("rule", RULES)
def test_without_neighbours_the_own_model_stays(rule):
    mixed = mixed_by(rule, OWN, [])

    assert (mixed.model, mixed.own_weight, mixed.verdicts) == (OWN, 1.0, ())


@pytest.mark.parametrize("rule", RULES)
def test_weights_add_up_to_one_and_say_what_was_mixed(rule):
    mixed = mixed_by(rule, OWN, OTHERS, losses=lambda adapter: 1.0)

    weights = [verdict.weight for verdict in mixed.verdicts]
    assert [verdict.peer for verdict in mixed.verdicts] == ["peer-0", "peer-1", "peer-2"]
    assert math.isclose(mixed.own_weight + sum(weights), 1.0)
    expected = mixed.own_weight * vector(OWN) + sum(
        w * vector(other) for w, other in zip(weights, OTHERS, strict=True)
    )
    np.testing.assert_allclose(vector(mixed.model), expected, rtol=1e-5, atol=1e-6)
    for verdict in mixed.verdicts:
        assert verdict.accepted == (verdict.weight > 0) == (not verdict.refused_by)


def test_average_is_the_mean_of_all():
    mixed = mixed_by(Average, OWN, OTHERS)

    expected = np.mean([vector(m) for m in (OWN, *OTHERS)], axis=0)
    np.testing.assert_allclose(vector(mixed.model), expected, rtol=1e-5, atol=1e-6)


def test_alone_takes_nothing():
    mixed = mixed_by(Alone, OWN, OTHERS)

    assert mixed.model is OWN
    assert {verdict.refused_by for verdict in mixed.verdicts} == {("alone",)}


def test_the_oracle_leaves_out_exactly_the_faulty():
    mixed = mixed_by(Oracle, OWN, OTHERS, make(faults__sites="peer-1"))

    honest = mixed_by(Average, OWN, [OTHERS[0], OTHERS[2]])
    assert mixed.model.digest() == honest.model.digest()
    assert [v.refused_by for v in mixed.verdicts] == [(), ("oracle",), ()]


@pytest.mark.parametrize("round", [1, 4])
def test_balance_accepts_within_its_radius(round):
    config = make(balance__gamma=1.2, balance__kappa=1.0, balance__alpha=0.4)
    rounds, norm = config.federation.rounds, np.linalg.norm(vector(OWN))
    radius = 1.2 * math.exp(-(round - 1) / rounds)
    far = [np.linalg.norm(vector(other) - vector(OWN)) / norm for other in OTHERS]
    near = [k for k, value in enumerate(far) if value <= radius]

    mixed = mixed_by(Balance, OWN, OTHERS, config, round=round)

    assert 0 < len(near) < 3
    assert [k for k, v in enumerate(mixed.verdicts) if v.accepted] == near
    expected = 0.4 * vector(OWN) + 0.6 * np.mean([vector(OTHERS[k]) for k in near], axis=0)
    np.testing.assert_allclose(vector(mixed.model), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([v.scores["distance"] for v in mixed.verdicts], far)
    assert mixed.verdicts[2].refused_by == ("distance",)


def test_balance_that_accepts_nobody_keeps_the_own_object():
    mixed = mixed_by(Balance, OWN, OTHERS, make(balance__gamma=1e-6))

    assert (mixed.model, mixed.own_weight) == (OWN, 1.0)


@pytest.mark.parametrize("radius", [0.0, 1.0])
def test_clipping_moves_by_the_metropolis_weights(radius):
    degrees = {"me": 3, "peer-0": 1, "peer-1": 5, "peer-2": 3}
    config = make(clipping__radius=radius)
    steps = [vector(other) - vector(OWN) for other in OTHERS]
    lengths = [np.linalg.norm(step) for step in steps]
    limit = radius or sorted(lengths)[-2]

    mixed = mixed_by(Clipping, OWN, OTHERS, config, degrees=degrees)

    expected = vector(OWN) + sum(
        w * min(1, limit / length) * step
        for w, length, step in zip((1 / 4, 1 / 6, 1 / 4), lengths, steps, strict=True)
    )
    np.testing.assert_allclose(vector(mixed.model), expected, rtol=1e-5, atol=1e-6)


def test_clipping_does_not_clip_a_copy_of_the_own_model():
    mixed = mixed_by(Clipping, OWN, [OWN, OTHERS[2]], make(clipping__radius=0.5))

    assert mixed.verdicts[0].weight == 1 / 3


def test_ubar_takes_of_the_nearest_those_of_no_worse_loss():
    others = [model(k, 0.1 * k) for k in range(1, 7)]
    order = sorted(others, key=lambda m: np.linalg.norm(vector(m) - vector(OWN)))
    losses = {OWN.digest(): 0.5, order[0].digest(): 0.5, order[1].digest(): 0.9}
    losses |= {order[2].digest(): 0.1}
    asked = []

    def loss(adapter):
        asked.append(adapter.digest())
        return losses[adapter.digest()]

    mixed = mixed_by(Ubar, OWN, others, make(ubar__rho=0.5, ubar__alpha=0.3), losses=loss)

    expected = 0.3 * vector(OWN) + 0.7 * np.mean([vector(order[0]), vector(order[2])], axis=0)
    np.testing.assert_allclose(vector(mixed.model), expected, rtol=1e-5, atol=1e-6)
    assert sum(verdict.accepted for verdict in mixed.verdicts) == 2
    assert len(asked) == 4, "the own model and the nearest half, nobody else"
    why = [
        next(v.refused_by for v, other in zip(mixed.verdicts, others, strict=True) if other is one)
        for one in order
    ]
    assert why == [(), ("loss",), (), ("distance",), ("distance",), ("distance",)]


def test_ubar_falls_back_to_the_nearest_when_all_are_worse():
    mixed = mixed_by(
        Ubar, OWN, OTHERS, losses=lambda m: 0.0 if m.digest() == OWN.digest() else float("nan")
    )

    assert [verdict.accepted for verdict in mixed.verdicts].count(True) == 1
