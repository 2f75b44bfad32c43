"""Lifts of gradients against dense matrices, and sums of products at a bounded rank."""

from __future__ import annotations

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.products import compress
from fedapp.variates import add, in_factors_of, lift, zeros

M, N, R, SCALING = 9, 7, 3, 1.5


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(seed: int) -> Adapter:
    pair = LoraPair(draw(seed, M, R), draw(seed + 100, R, N), SCALING)
    return Adapter({"q": pair}, {"head.weight": draw(seed, 4)})


def gradients(at: Adapter, g_mn: np.ndarray) -> Adapter:
    pair = at.pairs["q"]
    return Adapter(
        {},
        {
            "q.lora_B": (SCALING * g_mn @ pair.a_rn.T).astype(np.float32),
            "q.lora_A": (SCALING * pair.b_mr.T @ g_mn).astype(np.float32),
            "head.weight": draw(7, 4),
        },
    )


def test_a_lift_is_the_gradient_projected_on_the_factors() -> None:
    at, g_mn = model(1), draw(3, M, N)
    pair = at.pairs["q"]

    lifted = lift(gradients(at, g_mn), at)

    p_a = np.linalg.pinv(pair.a_rn) @ pair.a_rn
    p_b = pair.b_mr @ np.linalg.pinv(pair.b_mr)
    of_b, of_a = lifted.pairs["q.lora_B"], lifted.pairs["q.lora_A"]
    np.testing.assert_allclose(of_b.b_mr @ of_b.a_rn, SCALING * g_mn @ p_a, atol=1e-4)
    np.testing.assert_allclose(of_a.b_mr @ of_a.a_rn, SCALING * p_b @ g_mn, atol=1e-4)
    np.testing.assert_array_equal(lifted.tensors["head.weight"], draw(7, 4))


def test_in_the_same_factors_nothing_is_lost() -> None:
    at = model(1)
    given = gradients(at, draw(3, M, N))

    back = in_factors_of(lift(given, at), at)

    assert back.layout() == given.layout()
    for name, array in given.tensors.items():
        np.testing.assert_allclose(back.tensors[name], array, atol=1e-4)


def test_in_factors_of_the_same_spaces_it_is_the_gradient_there() -> None:
    at, g_mn = model(1), draw(3, M, N)
    pair, mix = at.pairs["q"], draw(5, R, R)
    other = Adapter(
        {"q": LoraPair(pair.b_mr @ np.linalg.inv(mix), mix @ pair.a_rn, SCALING)}, at.tensors
    )

    moved = in_factors_of(lift(gradients(at, g_mn), at), other)

    for name, array in gradients(other, g_mn).tensors.items():
        np.testing.assert_allclose(moved.tensors[name], array, atol=5e-4, err_msg=name)


def test_between_orthonormal_rows_it_is_c_a_old_a_new() -> None:
    old_rn, new_rn = (np.linalg.qr(draw(s, N, R))[0].T.astype(np.float32) for s in (1, 2))
    zero = np.zeros((M, R), np.float32)
    old, new = (Adapter({"q": LoraPair(zero, a, SCALING)}) for a in (old_rn, new_rn))
    c = draw(4, M, R)

    moved = in_factors_of(lift(Adapter({}, {"q.lora_B": c}), old), new)

    np.testing.assert_allclose(moved.tensors["q.lora_B"], c @ old_rn @ new_rn.T, atol=1e-5)


def test_a_factor_of_zero_carries_nothing() -> None:
    at = Adapter({"q": LoraPair(np.zeros((M, R), np.float32), draw(1, R, N), SCALING)})
    lifted = lift(gradients(at, draw(3, M, N)), at)

    back = in_factors_of(lifted, model(2))

    assert not back.tensors["q.lora_A"].any()
    assert back.tensors["q.lora_B"].any()


def test_what_is_no_pair_of_the_model_stays_a_tensor() -> None:
    part = Adapter({}, {"q.lora_B": draw(1, M, R)})
    assert lift(part, part).tensors.keys() == {"q.lora_B"}
    assert zeros(model(1), lambda name: name.endswith("_B")).tensors.keys() == {"q.lora_B"}


@pytest.mark.parametrize("cap", [2, 4, 30])
def test_a_sum_is_the_best_of_its_rank_and_tells_the_error(cap: int) -> None:
    terms = [(0.5, model(1)), (-1.5, model(2)), (2.0, model(3))]

    result, error = compress(terms, cap)

    dense = sum(w * SCALING * t.pairs["q"].b_mr @ t.pairs["q"].a_rn for w, t in terms)
    s = np.linalg.svd(dense, compute_uv=False)
    pair = result.pairs["q"]
    left = np.linalg.norm(dense - pair.scaling * pair.b_mr @ pair.a_rn)
    assert pair.rank == min(cap, N)
    assert left == pytest.approx(np.sqrt(np.square(s[cap:]).sum()), abs=1e-4)
    assert error == pytest.approx(left / np.linalg.norm(dense), abs=1e-6)
    head = sum(w * t.tensors["head.weight"] for w, t in terms)
    np.testing.assert_allclose(result.tensors["head.weight"], head, atol=1e-5)


def test_a_sum_that_is_zero_has_rank_one_and_no_error() -> None:
    result, error = compress([(1.0, model(1)), (-1.0, model(1))], 8)
    assert error < 1e-6 or result.pairs["q"].b_mr.max() < 1e-3
    nothing, none = compress([(0.0, model(1))], 8)
    assert (nothing.pairs["q"].rank, none) == (1, 0.0)


def test_lifts_add_up_whatever_the_factors() -> None:
    ats = [model(1), model(2)]
    lifts = [lift(gradients(at, draw(10 + k, M, N)), at) for k, at in enumerate(ats)]

    total, error = add(add(None, [(0.3, lifts[0])], 20)[0], [(0.7, lifts[1])], 20)
    assert error < 1e-6

    for name in ("q.lora_A", "q.lora_B"):
        dense = sum(
            w * each.pairs[name].b_mr @ each.pairs[name].a_rn
            for w, each in zip((0.3, 0.7), lifts, strict=True)
        )
        pair = total.pairs[name]
        np.testing.assert_allclose(pair.b_mr @ pair.a_rn, dense, atol=1e-4)
