"""Models as vectors and back, and what no rule accepts."""

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.robust.average import gossip_average
from fedapp.robust.balance import balance
from fedapp.robust.clipping import self_centred_clipping
from fedapp.robust.fltrust import fltrust
from fedapp.robust.krum import krum, multi_krum
from fedapp.robust.median import median
from fedapp.robust.trimmed_mean import trimmed_mean
from fedapp.robust.ubar import ubar
from fedapp.robust.vectors import from_vector, to_vector

AMONG_PEERS = {
    "average": gossip_average,
    "balance": lambda own, peers: balance(
        own, peers, round=0, rounds=5, gamma=0.3, kappa=1, alpha=0.5
    )[0],
    "clipping": self_centred_clipping,
    "ubar": lambda own, peers: ubar(own, peers, lambda _: 0.0, rho=0.5, alpha=0.5)[0],
}
CENTRAL = {
    "krum": lambda x: krum(x, 1)[0],
    "multi-krum": lambda x: multi_krum(x, 1, 2)[0],
    "trimmed mean": lambda x: trimmed_mean(x, 1),
    "median": median,
}


def adapter():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return Adapter(
        {"q": LoraPair(normal(4, 2), normal(2, 3), 2.0)},
        {"head.bias": normal(2), "head.scale": np.float32(3) * np.ones((), np.float32)},
    )


def test_a_vector_holds_all_numbers_in_wire_order():
    model = adapter()
    vector = to_vector(model)

    assert vector.shape == (model.size,)
    np.testing.assert_array_equal(vector[:6], model.pairs["q"].a_rn.ravel())
    np.testing.assert_array_equal(vector[-3:-1], model.tensors["head.bias"])
    back = from_vector(vector.astype(np.float64), model)
    assert back.digest() == model.digest()
    with pytest.raises(ValueError, match="expected a vector of 17 numbers"):
        from_vector(vector[:-1], model)


@pytest.mark.parametrize("rule", AMONG_PEERS.values(), ids=AMONG_PEERS)
def test_a_rule_among_peers_stands_alone_and_refuses_what_does_not_fit(rule):
    rng = np.random.default_rng(0)
    own, peers = rng.standard_normal(6).astype(np.float32), rng.standard_normal((5, 6))
    peers = peers.astype(np.float32)

    np.testing.assert_array_equal(rule(own, peers[:0]), own)
    before = own.copy(), peers.copy()
    assert rule(own, peers).dtype == np.float32
    np.testing.assert_array_equal(own, before[0])
    np.testing.assert_array_equal(peers, before[1])
    np.testing.assert_allclose(rule(own, np.tile(own, (5, 1))), own, rtol=1e-6)
    with pytest.raises(ValueError, match=r"expected models \(K, P\)"):
        rule(own[:5], peers)
    peers[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"rows \[2\].*hold NaN or Inf"):
        rule(own, peers)


@pytest.mark.parametrize("rule", CENTRAL.values(), ids=CENTRAL)
def test_a_central_rule_refuses_what_does_not_fit(rule):
    vectors = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)

    before = vectors.copy()
    assert rule(vectors).dtype == np.float32
    np.testing.assert_array_equal(vectors, before)
    np.testing.assert_allclose(rule(np.tile(vectors[:1], (5, 1))), vectors[0], rtol=1e-6)
    with pytest.raises(ValueError, match="at least"):
        rule(vectors[:0])
    vectors[2, 1] = np.inf
    with pytest.raises(ValueError, match=r"rows \[2\]"):
        rule(vectors)


@pytest.mark.parametrize("rule", CENTRAL.values(), ids=CENTRAL)
def test_a_central_rule_withstands_one_far_model_that_ruins_the_mean(rule):
    rng = np.random.default_rng(0)
    vectors = np.concatenate([1 + 0.1 * rng.standard_normal((7, 20)), np.full((1, 20), -1e6)])

    assert np.abs(rule(vectors) - 1).max() < 0.3
    assert np.abs(vectors.mean(axis=0) - 1).max() > 1e5


def test_trust_refuses_what_does_not_fit():
    update = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="NaN or Inf"):
        fltrust(update, np.full((2, 4), np.nan, np.float32))
    with pytest.raises(ValueError, match="own model hold NaN"):
        fltrust(np.nan * update, np.ones((2, 4), np.float32))
