"""Exact merges against dense numpy and scipy, on random and on degenerate products.

The oracle forms every m x n matrix; the code under test never needs one.
"""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak
from products import TOLERANCE, Federation, federations, shuffle, turn

from fedapp import lowrank, lowrank_krylov
from fedapp.lowrank import (
    factorise,
    sum_norm,
    weighted_sum_svd,
)


class TestWeightedSumSvd:
    @settings(deadline=None, max_examples=200)
    @given(federations(), st.data())
    def test_it_is_the_best_approximation_of_the_dense_sum(self, federation, data):
        total, bound = federation.total, TOLERANCE * federation.scale
        rank = data.draw(st.integers(1, min(total.shape)))

        u, s, vt = weighted_sum_svd(federation.pairs, federation.weights, rank)

        exact = scipy.linalg.svdvals(total)
        np.testing.assert_allclose(s, exact[:rank], atol=bound, rtol=0)
        # Eckart-Young: no other rank-r matrix is nearer. This also holds when values tie.
        np.testing.assert_allclose(
            np.linalg.norm(total - (u * s) @ vt), np.linalg.norm(exact[rank:]), atol=5 * bound
        )
        np.testing.assert_allclose(u.T @ u, np.eye(rank), atol=1e-12)
        np.testing.assert_allclose(vt @ vt.T, np.eye(rank), atol=1e-12)
        assert (np.diff(s) <= bound).all()
        assert u.dtype == s.dtype == vt.dtype == np.float64

    @settings(deadline=None)
    @given(federations())
    def test_it_does_not_depend_on_client_order_or_gauge(self, federation):
        rank = min(4, *federation.total.shape)
        u, s, vt = weighted_sum_svd(federation.pairs, federation.weights, rank)
        residual = np.linalg.norm(federation.total - (u * s) @ vt)
        _, pairs, weights = shuffle(federation)

        for other_pairs, other_weights in (
            (pairs, weights),
            (turn(federation), federation.weights),
        ):
            u2, s2, vt2 = weighted_sum_svd(other_pairs, other_weights, rank)
            bound = 100 * TOLERANCE * federation.scale
            np.testing.assert_allclose(s2, s, atol=bound)
            residual2 = np.linalg.norm(federation.total - (u2 * s2) @ vt2)
            np.testing.assert_allclose(residual2, residual, atol=bound)

    def test_with_distinct_singular_values_the_vectors_themselves_agree(self):
        rng = np.random.default_rng(0)
        federation = Federation(
            [(rng.normal(size=(30, 3)), rng.normal(size=(3, 20))) for _ in range(4)],
            [0.1, 0.2, 0.3, 0.4],
            rng,
        )
        _, pairs, weights = shuffle(federation)

        first = weighted_sum_svd(federation.pairs, federation.weights, 5)
        for again in (
            weighted_sum_svd(pairs, weights, 5),
            weighted_sum_svd(turn(federation), federation.weights, 5),
        ):
            for one, other in zip(first, again, strict=True):
                np.testing.assert_allclose(other, one, atol=1e-11)

    def test_signs_are_fixed_by_the_largest_entry_of_u(self):
        rng = np.random.default_rng(1)
        pair = rng.normal(size=(12, 4)), rng.normal(size=(4, 9))

        u, _, _ = weighted_sum_svd([pair], [1.0], 4)
        negated, _, vt_negated = weighted_sum_svd([pair], [-1.0], 4)

        assert (u[np.abs(u).argmax(axis=0), range(4)] > 0).all()
        np.testing.assert_allclose(negated, u, atol=1e-12)
        assert vt_negated.shape == (4, 9)

    @pytest.mark.parametrize("clients", [1, 3, 40])
    def test_both_paths_agree_with_the_dense_svd_in_fp32(self, clients):
        rng = np.random.default_rng(clients)
        pairs = [
            (rng.normal(size=(64, 4)).astype("f4"), rng.normal(size=(4, 48)).astype("f4"))
            for _ in range(clients)
        ]
        weights = rng.uniform(0.5, 1.5, clients).tolist()
        total = Federation(pairs, weights, rng).total

        u, s, vt = weighted_sum_svd(pairs, weights, 4)

        left, exact, right = scipy.linalg.svd(total)
        best = (left[:, :4] * exact[:4]) @ right[:4]
        assert u.dtype == s.dtype == vt.dtype == np.float32
        assert np.linalg.norm((u * s) @ vt - best) <= 1e-6 * np.linalg.norm(best)

    @pytest.mark.parametrize("shape", [(300, 220), (220, 300)])
    @pytest.mark.parametrize("clients", [28, 90])
    @pytest.mark.parametrize(
        "kind", ["near", "decaying", "identical", "independent", "opposed", "zero"]
    )
    def test_many_clients_of_any_kind_get_the_best_approximation(self, shape, clients, kind):
        federation = _many(kind, clients, *shape)
        total, bound = federation.total, 1e-9 * federation.scale

        u, s, vt = weighted_sum_svd(federation.pairs, federation.weights, 4)

        exact = scipy.linalg.svdvals(total)
        np.testing.assert_allclose(s, exact[:4], atol=bound, rtol=0)
        residual = np.linalg.norm(total - (u * s) @ vt)
        np.testing.assert_allclose(residual, np.linalg.norm(exact[4:]), atol=bound, rtol=0)
        np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(vt @ vt.T, np.eye(4), atol=1e-12)

    def test_the_iteration_is_used_for_decaying_spectra_and_given_up_for_flat_ones(self):
        near, flat = _many("near", 28, 300, 220), _many("independent", 28, 300, 220)

        assert lowrank_krylov.leading_svd(near.pairs, near.weights, 4) is not None
        assert lowrank_krylov.leading_svd(flat.pairs, flat.weights, 4) is None

    def test_a_flat_spectrum_costs_one_cycle_only(self, monkeypatch):
        flat, calls = _many("independent", 90, 300, 220), []
        apply = lowrank_krylov.apply
        monkeypatch.setattr(lowrank_krylov, "apply", lambda *a: (calls.append(1), apply(*a))[1])

        assert lowrank_krylov.leading_svd(flat.pairs, flat.weights, 4) is None
        assert len(calls) == lowrank_krylov.BLOCKS

    @pytest.mark.parametrize("clients", [28, 90])
    def test_the_iteration_agrees_with_the_exact_way(self, clients, monkeypatch):
        federation = _many("near", clients, 300, 220)
        quick = weighted_sum_svd(federation.pairs, federation.weights, 4)
        monkeypatch.setattr(lowrank_krylov, "leading_svd", lambda *_: None)

        exact = weighted_sum_svd(federation.pairs, federation.weights, 4)

        assert any((a != b).any() for a, b in zip(quick, exact, strict=True))  # two ways indeed
        for one, other in zip(quick, exact, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9 * np.abs(other).max())

    def test_many_clients_give_the_same_bits_every_time(self):
        federation = _many("near", 90, 300, 220)

        one, two = (weighted_sum_svd(federation.pairs, federation.weights, 4) for _ in range(2))

        for first, second in zip(one, two, strict=True):
            np.testing.assert_array_equal(first, second)

    def test_a_sum_of_zero_gives_zero_values_and_orthonormal_vectors(self):
        pairs = [(np.zeros((6, 2)), np.ones((2, 5)))] * 2

        u, s, vt = weighted_sum_svd(pairs, [1.0, 1.0], 4)

        np.testing.assert_array_equal(s, np.zeros(4))
        np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-15)
        np.testing.assert_allclose(vt @ vt.T, np.eye(4), atol=1e-15)

    def test_ten_clients_need_less_memory_than_the_matrix(self):
        rng = np.random.default_rng(0)
        pairs = [
            (rng.normal(size=(1024, 8)).astype("f4"), rng.normal(size=(8, 1024)).astype("f4"))
            for _ in range(10)
        ]

        assert peak(lambda: weighted_sum_svd(pairs, [0.1] * 10, 8)) < 1024 * 1024 * 4

    @pytest.mark.parametrize("kind", ["near", "independent"])
    def test_hundreds_of_clients_need_no_more_memory(self, kind):
        # independent: the dense way, whose memory is a few matrices
        few, many = (_many(kind, clients, 300, 220) for clients in (90, 360))

        peaks = [peak(lambda f=f: weighted_sum_svd(f.pairs, f.weights, 4)) for f in (few, many)]

        assert peaks[1] < 1.1 * peaks[0]

    def test_hundreds_of_clients_need_less_memory_than_the_matrix(self):
        pair = np.ones((1024, 8), np.float32), np.ones((8, 1024), np.float32)

        assert peak(lambda: weighted_sum_svd([pair] * 300, [0.1] * 300, 8)) < 1024 * 1024 * 4

    @pytest.mark.parametrize(
        ("pairs", "weights", "rank", "sentence"),
        [
            ([], [], 1, "at least one"),
            ([(np.ones((3, 2)), np.ones((2, 4)))], [1.0, 2.0], 1, "1 pairs and 2 weights"),
            ([(np.ones((3, 2)), np.ones((3, 4)))], [1.0], 1, "must share r"),
            ([(np.ones(3), np.ones((3, 4)))], [1.0], 1, "must share r"),
            (
                [(np.ones((3, 2)), np.ones((2, 4))), (np.ones((5, 2)), np.ones((2, 4)))],
                [1.0, 1.0],
                1,
                "one shape",
            ),
            ([(np.ones((3, 2)), np.ones((2, 4)))], [1.0], 4, "rank must be within 1..3, got 4"),
            ([(np.ones((3, 2)), np.ones((2, 4)))], [1.0], 0, "rank must be within 1..3, got 0"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, pairs, weights, rank, sentence):
        with pytest.raises(ValueError, match=sentence):
            weighted_sum_svd(pairs, weights, rank)


class TestFactorise:
    @settings(deadline=None)
    @given(
        federations(),
        st.sampled_from(["symmetric", "orthonormal-a", "orthonormal-b"]),
        st.floats(0.5, 3.0),
        st.booleans(),
    )
    def test_the_factors_multiply_to_the_svd_times_the_ratio(self, federation, kind, ratio, split):
        rank = min(3, *federation.total.shape)
        u, s, vt = weighted_sum_svd(federation.pairs, federation.weights, rank)

        b, a = factorise(u, s, vt, kind, ratio, split)

        np.testing.assert_allclose(b @ a, ratio * (u * s) @ vt, atol=1e-12 * federation.scale)
        eye = np.eye(rank) * (ratio if split else 1.0)
        if kind == "orthonormal-b":
            np.testing.assert_allclose(b.T @ b, eye, atol=1e-12)
        elif kind == "orthonormal-a":
            np.testing.assert_allclose(a @ a.T, eye, atol=1e-12)
        else:  # balanced: B^T B = A A^T
            np.testing.assert_allclose(b.T @ b, a @ a.T, atol=1e-12 * federation.scale)

    def test_the_norm_lost_by_truncation_can_be_restored(self):
        rng = np.random.default_rng(0)
        pairs = [(rng.normal(size=(20, 4)), rng.normal(size=(4, 30))) for _ in range(3)]
        u, s, vt = weighted_sum_svd(pairs, [1.0, 1.0, 1.0], 4)
        norm = sum_norm(pairs, [1.0, 1.0, 1.0])

        b, a = factorise(u, s, vt, "orthonormal-b", norm_ratio=norm / np.linalg.norm(s))

        assert np.linalg.norm(b @ a) == pytest.approx(np.linalg.norm(sum(b @ a for b, a in pairs)))

    def test_fp32_stays_fp32(self):
        b, a = factorise(np.eye(3, 2, dtype="f4"), np.ones(2, "f4"), np.eye(2, 4, dtype="f4"))

        assert b.dtype == a.dtype == np.float32

    def test_an_unknown_kind_is_refused(self):
        with pytest.raises(ValueError, match="got 'diagonal'"):
            factorise(np.eye(2), np.ones(2), np.eye(2), "diagonal")


def _many(kind, clients, m, n):
    rng = np.random.default_rng(clients)
    b0, a0 = rng.normal(size=(m, 4)), rng.normal(size=(4, n))
    decay = 10.0 ** -np.arange(4.0)[:, None]

    def pair():
        if kind == "independent":
            return rng.normal(size=(m, 4)), rng.normal(size=(4, n))
        if kind == "identical":
            return b0, a0
        if kind == "opposed":
            return b0 * rng.choice([-1, 1]), a0
        if kind == "zero":
            return 0 * b0, a0
        a = decay * a0 if kind == "decaying" else a0
        return b0 + 0.3 * rng.normal(size=(m, 4)), a + 0.01 * rng.normal(size=(4, n))

    weights = rng.uniform(0.5, 1.5, clients) / clients
    return Federation([pair() for _ in range(clients)], weights.tolist(), rng)


def test_everything_public_is_reachable_from_lowrank():
    for name in lowrank.__all__:
        assert hasattr(lowrank, name)
