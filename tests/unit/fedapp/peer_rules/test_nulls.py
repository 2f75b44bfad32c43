"""Models that are known to be useless."""

from __future__ import annotations

import numpy as np

from fedapp.adapter import Adapter, LoraPair
from fedapp.peer_rules.nulls import useless


def _own() -> Adapter:
    rng = np.random.default_rng(0)
    b_mr, a_rn = (rng.standard_normal(s).astype(np.float32) for s in ((50, 2), (2, 40)))
    bias = np.full(500, 3.0, np.float32)
    return Adapter({"q": LoraPair(b_mr, a_rn, 2.0)}, {"bias": bias, "zero": bias * 0})


def test_the_first_is_the_flipped_model_and_the_others_random_of_its_size() -> None:
    own = _own()
    flipped, one, other = useless(own, 3, 7)

    pair = flipped.pairs["q"]
    np.testing.assert_array_equal(
        pair.b_mr @ pair.a_rn, -(own.pairs["q"].b_mr @ own.pairs["q"].a_rn)
    )
    np.testing.assert_array_equal(flipped.tensors["bias"], -own.tensors["bias"])
    for model in (one, other):
        assert abs(np.sqrt(np.mean(model.tensors["bias"] ** 2)) - 3) < 0.4
        assert abs(model.tensors["bias"].mean()) < 0.6
        assert not model.tensors["zero"].any()
    assert one.digest() != other.digest()
    assert [m.digest() for m in useless(own, 3, 7)] == [m.digest() for m in (flipped, one, other)]
    assert [m.digest() for m in useless(own, 2, 8)][1] != one.digest()
