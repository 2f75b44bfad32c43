"""Stacked sums of products against dense matrices."""

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.stacks import of_rank, recompress, stack_adapters, stack_pairs


def pair(seed, m=7, n=5, rank=2, scaling=1.5):
    rng = np.random.default_rng(seed)
    return LoraPair(
        rng.standard_normal((m, rank)).astype(np.float32),
        rng.standard_normal((rank, n)).astype(np.float32),
        scaling,
    )


def dense(one):
    return one.scaling * one.b_mr.astype(float) @ one.a_rn.astype(float)


def cut(whole, rank):
    found = recompress(Adapter({"x": whole}), rank)
    assert found.norm == pytest.approx(np.linalg.norm(dense(found.adapter.pairs["x"])), rel=1e-5)
    return found.adapter.pairs["x"], found.error


def test_a_stack_is_the_weighted_sum():
    pairs = [pair(0), pair(1, rank=3, scaling=0.5), pair(2)]

    total = stack_pairs(pairs, [0.5, -2.0, 0.25])

    assert (total.rank, total.scaling) == (7, 1.0)
    expected = 0.5 * dense(pairs[0]) - 2 * dense(pairs[1]) + 0.25 * dense(pairs[2])
    np.testing.assert_allclose(dense(total), expected, rtol=1e-6, atol=1e-6)


def test_pairs_with_one_a_share_its_rows_and_zero_ones_have_none():
    first, other = pair(0), pair(1)
    same = LoraPair(pair(2).b_mr, first.a_rn.copy(), 2.0)
    zero = LoraPair(np.zeros_like(first.b_mr), pair(3).a_rn, 1.0)

    total = stack_pairs([zero, first, other, same], [1.0, 1.0, 1.0, 0.5])

    assert total.rank == 4
    np.testing.assert_allclose(
        dense(total), dense(first) + dense(other) + 0.5 * dense(same), rtol=1e-6, atol=1e-6
    )
    nothing = stack_pairs([zero, zero], [1.0, 1.0])
    assert (nothing.rank, np.abs(dense(nothing)).max()) == (2, 0)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_recompression_is_the_best_of_its_rank_and_tells_its_error(rank):
    whole = stack_pairs([pair(0), pair(1)], [1.0, 1.0])
    u, s, vt = np.linalg.svd(dense(whole))

    short, error = cut(whole, rank)

    assert short.rank == rank
    best = (u[:, :rank] * s[:rank]) @ vt[:rank]
    np.testing.assert_allclose(dense(short), best, atol=1e-5)
    assert error == pytest.approx(np.linalg.norm(s[rank:]) / np.linalg.norm(s), abs=1e-6)
    if rank == 4:
        assert short is whole, "nothing to do"


def test_a_product_whose_terms_cancel_is_cut_as_well_as_any():
    """Two large pairs leave a small one: what remains is right to fp32 of the large."""
    large, small = pair(0, m=30, n=20, rank=6), pair(1, m=30, n=20, rank=6)
    minus = LoraPair(-large.b_mr, large.a_rn * np.float32(1 + 1e-6), large.scaling)
    whole = stack_pairs([large, minus, small], [1.0, 1.0, 1e-2])
    u, s, vt = np.linalg.svd(dense(whole))

    short, error = cut(whole, 3)

    best = (u[:, :3] * s[:3]) @ vt[:3]
    np.testing.assert_allclose(dense(short), best, atol=2e-6 * np.abs(large.b_mr).max())
    assert error == pytest.approx(np.linalg.norm(s[3:]) / np.linalg.norm(s), rel=1e-3)
    np.testing.assert_allclose(short.a_rn @ short.a_rn.T, np.eye(3), atol=1e-6)


def test_never_more_than_the_matrix_has():
    whole = stack_pairs([pair(seed) for seed in range(4)], [1.0] * 4)  # rank 8 of 7 x 5
    short, error = cut(whole, 0)
    assert short.rank == 5
    assert error < 1e-6
    np.testing.assert_allclose(dense(short), dense(whole), atol=1e-5)


@pytest.mark.parametrize("case", ["new", "inside", "repeated", "odd first row", "no room", "full"])
def test_what_was_cut_before_is_cut_again_as_if_it_were_new(case):
    """The orthonormal rows of what was folded are a short cut, and change nothing."""
    rng = np.random.default_rng(3)
    n = {"no room": 9, "full": 6}.get(case, 20)
    past, _ = cut(stack_pairs([pair(k, m=15, n=n, rank=4) for k in range(3)], [1.0] * 3), 6)
    a_rn = rng.standard_normal((4, n)).astype(np.float32)
    if case == "inside":
        a_rn[:2] = rng.standard_normal((2, 6)) @ past.a_rn
    if case == "repeated":
        a_rn[1] = a_rn[0]
    more = LoraPair(rng.standard_normal((15, 4)).astype(np.float32), a_rn, 1.0)
    order = [more, past] if case == "odd first row" else [past, more]
    whole = stack_pairs(order, [1.0, 1.0])
    u, s, vt = np.linalg.svd(dense(whole))

    short, error = cut(whole, 6 if n > 6 else 5)

    rank = short.rank
    np.testing.assert_allclose(dense(short), (u[:, :rank] * s[:rank]) @ vt[:rank], atol=2e-5)
    assert error == pytest.approx(np.linalg.norm(s[rank:]) / np.linalg.norm(s), rel=1e-4)
    np.testing.assert_allclose(short.a_rn @ short.a_rn.T, np.eye(rank), atol=1e-6)


def test_a_hundred_rounds_stay_orthonormal():
    past = stack_pairs([pair(k, m=30, n=24, rank=4) for k in range(4)], [1.0] * 4)
    for round in range(100):
        past, _ = cut(stack_pairs([past, pair(round, m=30, n=24, rank=4)], [1.0, 1.0]), 12)
    np.testing.assert_allclose(past.a_rn @ past.a_rn.T, np.eye(12), atol=2e-6)


@pytest.mark.parametrize("rank_of_y", [3, 1])
def test_the_error_of_an_adapter_is_that_of_all_its_products(rank_of_y):
    adapter = Adapter({"x": pair(0, rank=3), "y": pair(1, m=4, n=9, rank=rank_of_y)})
    found = recompress(adapter, 1)
    short, error = found.adapter, found.error
    lost = sum(
        np.linalg.norm(dense(one) - dense(short.pairs[name])) ** 2
        for name, one in adapter.pairs.items()
    )
    total = sum(np.linalg.norm(dense(one)) ** 2 for one in adapter.pairs.values())
    assert error == pytest.approx(np.sqrt(lost / total), rel=1e-5)
    zero = adapter.map(lambda name, array: array * np.float32(name.endswith("A")))
    assert (recompress(zero, 1).error, recompress(zero, 1).norm) == (0, 0)


def test_one_rank_and_scaling_for_all():
    adapter = Adapter({"x": pair(0, rank=3), "y": pair(1, rank=1)}, {"h": np.ones(2, np.float32)})
    even = of_rank(adapter, 4, 0.5)
    for name, one in adapter.pairs.items():
        assert (even.pairs[name].rank, even.pairs[name].scaling) == (4, 0.5)
        np.testing.assert_allclose(dense(even.pairs[name]), dense(one), rtol=1e-6, atol=1e-6)
    assert list(even.tensors) == ["h"]


def test_stacked_adapters_leave_tensors_out():
    one, two = (Adapter({"x": pair(k)}, {"h": np.ones(2, np.float32)}) for k in range(2))
    total = stack_adapters([one, two], [1.0, 3.0])
    np.testing.assert_allclose(
        dense(total.pairs["x"]), dense(one.pairs["x"]) + 3 * dense(two.pairs["x"]), rtol=1e-5
    )
    assert not total.tensors
