"""Low-rank algebra against dense numpy and scipy, on random and on degenerate products.

The oracle forms every m x n matrix; the code under test never needs one.
"""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp import lowrank, lowrank_krylov, lowrank_sums
from fedapp.lowrank import (
    basis_overlap,
    cancellation_ratio,
    client_global_cosines,
    factorise,
    increment,
    inner_products,
    pairwise_cosines,
    product_distance,
    product_inner,
    product_norm,
    sum_norm,
    weighted_sum_svd,
)

TOLERANCE = 1e-12  # relative to the sum of the products' norms


@dataclass
class Federation:
    pairs: list
    weights: list
    rng: np.random.Generator

    @property
    def products(self):
        return [b.astype(np.float64) @ a.astype(np.float64) for b, a in self.pairs]

    @property
    def total(self):
        return sum(w * p for w, p in zip(self.weights, self.products, strict=True))

    @property
    def scale(self):
        norms = [np.linalg.norm(p) for p in self.products]
        return sum(abs(w) * norm for w, norm in zip(self.weights, norms, strict=True)) or 1.0


@st.composite
def federations(draw, max_clients=6):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n = draw(st.integers(2, 24)), draw(st.integers(2, 24))
    kind = draw(st.sampled_from(["independent", "near", "identical", "opposed", "zero-b"]))
    spread = 10.0 ** draw(st.integers(-3, 3))
    clients = draw(st.integers(1, max_clients))
    common_rank = draw(st.integers(1, min(m, n, 4)))
    common = rng.normal(size=(m, common_rank)), spread * rng.normal(size=(common_rank, n))
    pairs = []
    for _ in range(clients):
        rank = draw(st.integers(1, min(m, n, 4)))
        b, a = rng.normal(size=(m, rank)), spread * rng.normal(size=(rank, n))
        if kind == "near":
            b = common[0] + 1e-6 * rng.normal(size=common[0].shape)
            a = common[1] + 1e-6 * spread * rng.normal(size=common[1].shape)
        elif kind in ("identical", "opposed"):
            b, a = common
        elif kind == "zero-b":
            b = np.zeros_like(b)
        pairs.append((b, a))
    weights = rng.uniform(0.1, 2.0, clients)
    if kind == "opposed":
        weights *= (-1.0) ** np.arange(clients)
    return Federation(pairs, weights.tolist(), rng)


def _turn(federation):
    """Return the same products in another gauge: B Q, Q^-1 A."""
    turned = []
    for b, a in federation.pairs:
        r = b.shape[1]
        q = scipy.linalg.qr(federation.rng.normal(size=(r, r)))[0]
        q = q * federation.rng.uniform(0.3, 3.0, r)
        turned.append((b @ q, np.linalg.solve(q, a)))
    return turned


def _shuffle(federation):
    order = federation.rng.permutation(len(federation.pairs))
    return (
        order,
        [federation.pairs[k] for k in order],
        [federation.weights[k] for k in order],
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
        _, pairs, weights = _shuffle(federation)

        for other_pairs, other_weights in (
            (pairs, weights),
            (_turn(federation), federation.weights),
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
        _, pairs, weights = _shuffle(federation)

        first = weighted_sum_svd(federation.pairs, federation.weights, 5)
        for again in (
            weighted_sum_svd(pairs, weights, 5),
            weighted_sum_svd(_turn(federation), federation.weights, 5),
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

        assert _peak(lambda: weighted_sum_svd(pairs, [0.1] * 10, 8)) < 1024 * 1024 * 4

    @pytest.mark.parametrize("kind", ["near", "independent"])
    def test_hundreds_of_clients_need_no_more_memory(self, kind):
        # independent: the dense way, whose memory is a few matrices
        few, many = (_many(kind, clients, 300, 220) for clients in (90, 360))

        peaks = [_peak(lambda f=f: weighted_sum_svd(f.pairs, f.weights, 4)) for f in (few, many)]

        assert peaks[1] < 1.1 * peaks[0]

    def test_hundreds_of_clients_need_less_memory_than_the_matrix(self):
        pair = np.ones((1024, 8), np.float32), np.ones((8, 1024), np.float32)

        assert _peak(lambda: weighted_sum_svd([pair] * 300, [0.1] * 300, 8)) < 1024 * 1024 * 4

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


class TestNormsAndInnerProducts:
    @settings(deadline=None, max_examples=200)
    @given(federations())
    def test_they_equal_the_dense_ones(self, federation):
        products = federation.products
        for i, (pair, product) in enumerate(zip(federation.pairs, products, strict=True)):
            other, dense = federation.pairs[i - 1], products[i - 1]
            norm, other_norm = np.linalg.norm(product), np.linalg.norm(dense)
            assert product_norm(*pair) == pytest.approx(norm, rel=1e-12, abs=1e-300)
            assert product_inner(*pair, *other) == pytest.approx(
                np.sum(product * dense), abs=1e-12 * norm * other_norm
            )
            assert product_distance(*pair, *other) == pytest.approx(
                np.linalg.norm(product - dense), rel=1e-8, abs=1e-14 * (norm + other_norm)
            )
            grown = increment(*pair, *other)
            np.testing.assert_allclose(
                grown[0] @ grown[1], product - dense, atol=1e-13 * (norm + other_norm)
            )

    @settings(deadline=None, max_examples=200)
    @given(federations(), st.sampled_from([4, 2**16]))
    def test_the_norm_of_a_sum_equals_the_dense_one_in_blocks_of_any_size(self, federation, block):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lowrank_sums, "BLOCK_NUMBERS", block)
            norm = sum_norm(federation.pairs, federation.weights)

        expected = np.linalg.norm(federation.total)
        assert norm == pytest.approx(expected, abs=TOLERANCE * federation.scale)

    @settings(deadline=None)
    @given(federations())
    def test_they_do_not_depend_on_the_gauge(self, federation):
        turned = _turn(federation)
        for pair, other in zip(federation.pairs, turned, strict=True):
            norm = product_norm(*pair)
            assert product_norm(*other) == pytest.approx(norm, rel=1e-11, abs=1e-300)
            assert product_distance(*pair, *other) <= 1e-12 * norm
            assert product_inner(*pair, *other) == pytest.approx(norm**2, rel=1e-11, abs=1e-300)

    def test_a_norm_is_accurate_when_its_terms_cancel(self):
        # B A = x y^T - x (y + d)^T: the Gram identity loses half of the digits
        rng = np.random.default_rng(0)
        x, y, d = rng.normal(size=(50, 1)), rng.normal(size=(1, 40)), rng.normal(size=(1, 40))
        b, a = np.hstack([x, -x]), np.vstack([y, y + 1e-9 * d])
        expected = np.linalg.norm(x) * np.linalg.norm(a[1] - a[0])

        gram = np.sqrt(abs(np.sum((b.T @ b) * (a @ a.T))))

        assert product_norm(b, a) == pytest.approx(expected, rel=1e-6)
        assert abs(gram / expected - 1) > 1e-2  # what the stable form is for

    @pytest.mark.parametrize("offset", [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
    def test_a_distance_of_fp32_factors_does_not_cancel(self, offset):
        rng = np.random.default_rng(0)
        b1, a1 = rng.normal(size=(256, 8)), rng.normal(size=(8, 192))
        pairs = [
            (b.astype("f4"), a.astype("f4"))
            for b, a in (
                (b1, a1),
                (b1 + offset * rng.normal(size=b1.shape), a1 + offset * rng.normal(size=a1.shape)),
            )
        ]
        (b1, a1), (b2, a2) = pairs
        long = [x.astype(np.longdouble) for x in (b1, a1, b2, a2)]
        exact = float(np.sqrt(np.sum((long[0] @ long[1] - long[2] @ long[3]) ** 2)))
        assert exact > 0

        assert product_distance(b1, a1, b2, a2) == pytest.approx(exact, rel=1e-9)

    def test_the_textbook_identity_would_have_failed(self):
        # Guards the test above: the same data are hard for the plain identity in fp32.
        rng = np.random.default_rng(0)
        b, a = rng.normal(size=(256, 8)).astype("f4"), rng.normal(size=(8, 192)).astype("f4")
        p = (b + np.float32(1e-6) * rng.normal(size=b.shape)).astype("f4")

        def inner(b1, a1, b2, a2):
            return np.sum((b1.T @ b2) * (a1 @ a2.T), dtype=np.float32)

        plain = inner(b, a, b, a) + inner(p, a, p, a) - 2 * inner(b, a, p, a)
        exact = np.linalg.norm((b.astype("f8") - p) @ a)

        assert abs(np.sqrt(abs(plain)) / exact - 1) > 0.1
        assert product_distance(b, a, p, a) == pytest.approx(exact, rel=1e-9)

    def test_equal_factors_are_at_distance_zero_exactly(self):
        rng = np.random.default_rng(0)
        b, a = rng.normal(size=(9, 3)).astype("f4"), rng.normal(size=(3, 8)).astype("f4")

        assert product_distance(b, a, b.copy(), a.copy()) == 0.0

    @pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f4", "f8"), ("f8", "f8")])
    def test_an_increment_is_fp32_only_if_everything_is(self, dtypes):
        ones = [(np.ones((4, 2), d), np.ones((2, 3), d)) for d in dtypes]

        b, a = increment(*ones[0], *ones[1])

        expected = np.float32 if dtypes == ("f4", "f4") else np.float64
        assert b.dtype == a.dtype == expected
        assert b.shape == (4, 4)
        assert a.shape == (4, 3)

    def test_products_of_different_shapes_are_refused(self):
        one, two = (np.ones((3, 2)), np.ones((2, 4))), (np.ones((3, 2)), np.ones((2, 5)))

        for function in (product_inner, product_distance, increment):
            with pytest.raises(ValueError, match=r"one shape, got \(3, 4\) and \(3, 5\)"):
                function(*one, *two)


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


class TestAlignment:
    @settings(deadline=None, max_examples=200)
    @given(federations())
    def test_ratio_and_cosines_equal_the_dense_ones(self, federation):
        flat = np.array([product.ravel() for product in federation.products])
        total, norms = federation.total.ravel(), np.linalg.norm(flat, axis=1)
        shares = np.abs(federation.weights) * norms

        ratio = cancellation_ratio(federation.pairs, federation.weights)
        pairwise = pairwise_cosines(federation.pairs)
        with_sum = client_global_cosines(federation.pairs, federation.weights)

        if not shares.sum():
            assert ratio == 0.0
            assert not pairwise.any()
            assert not with_sum.any()
            return
        assert ratio == pytest.approx(np.linalg.norm(total) / shares.sum(), abs=1e-12)
        assert 0 <= ratio <= 1
        expected = (flat @ flat.T) / np.outer(norms, norms)
        np.testing.assert_allclose(pairwise, expected, atol=1e-11)
        if ratio > 1e-3:  # a sum that is nothing but rounding has no direction
            cosines = flat @ total / (norms * np.linalg.norm(total))
            np.testing.assert_allclose(with_sum, cosines, atol=1e-8)
        inner = inner_products(federation.pairs)
        np.testing.assert_allclose(inner, flat @ flat.T, atol=1e-12 * norms.max() ** 2)

    @settings(deadline=None)
    @given(federations())
    def test_they_do_not_depend_on_client_order_or_gauge(self, federation):
        order, pairs, weights = _shuffle(federation)
        turned = _turn(federation)
        ratio = cancellation_ratio(federation.pairs, federation.weights)
        pairwise = pairwise_cosines(federation.pairs)

        assert cancellation_ratio(pairs, weights) == pytest.approx(ratio, abs=1e-11)
        assert cancellation_ratio(turned, federation.weights) == pytest.approx(ratio, abs=1e-11)
        np.testing.assert_allclose(
            pairwise_cosines(pairs), pairwise[np.ix_(order, order)], atol=1e-10
        )
        np.testing.assert_allclose(pairwise_cosines(turned), pairwise, atol=1e-10)
        if ratio > 1e-3:
            with_sum = client_global_cosines(federation.pairs, federation.weights)
            np.testing.assert_allclose(
                client_global_cosines(pairs, weights), with_sum[order], atol=1e-7
            )
            np.testing.assert_allclose(
                client_global_cosines(turned, federation.weights), with_sum, atol=1e-7
            )

    def test_identical_clients_do_not_cancel_and_opposed_ones_do(self):
        rng = np.random.default_rng(0)
        pair = rng.normal(size=(10, 2)), rng.normal(size=(2, 8))
        opposite = -pair[0], pair[1]

        assert cancellation_ratio([pair] * 3, [0.2, 0.3, 0.5]) == pytest.approx(1.0, abs=1e-14)
        assert cancellation_ratio([pair, opposite], [0.5, 0.5]) < 1e-14
        assert pairwise_cosines([pair, opposite])[0, 1] == pytest.approx(-1.0)

    def test_increments_tell_what_cumulative_products_hide(self):
        # Two clients move in opposite directions from a large common adapter.
        rng = np.random.default_rng(0)
        b, a = rng.normal(size=(20, 2)), rng.normal(size=(2, 20))
        step = 1e-3 * rng.normal(size=b.shape)
        clients = [(b + step, a), (b - step, a)]

        cumulative = cancellation_ratio(clients, [0.5, 0.5])
        rounds = cancellation_ratio([increment(*client, b, a) for client in clients], [0.5, 0.5])

        assert cumulative > 0.999
        assert rounds < 1e-12

    def test_hundreds_of_clients_need_little_memory(self):
        rng = np.random.default_rng(0)
        pairs = [(rng.normal(size=(512, 4)), rng.normal(size=(4, 512))) for _ in range(150)]
        weights = [1 / 150] * 150

        peak = _peak(lambda: (sum_norm(pairs, weights), client_global_cosines(pairs, weights)))

        assert peak < 512 * 512 * 8  # one matrix


class TestBasisOverlap:
    @settings(deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 20))
    def test_it_is_the_mean_squared_cosine_of_the_principal_angles(self, seed, rank, extra):
        rng = np.random.default_rng(seed)
        b1, b2 = rng.normal(size=(2, rank + extra, rank))

        cosines = np.cos(scipy.linalg.subspace_angles(b1, b2))

        assert basis_overlap(b1, b2, squared=True) == pytest.approx(np.mean(cosines**2), abs=1e-9)
        assert basis_overlap(b1, b2) == pytest.approx(np.sqrt(np.mean(cosines**2)), abs=1e-9)

    @settings(deadline=None)
    @given(st.integers(0, 2**32 - 1))
    def test_it_is_symmetric_and_does_not_depend_on_the_basis(self, seed):
        rng = np.random.default_rng(seed)
        b1, b2 = rng.normal(size=(2, 15, 3))
        q = rng.normal(size=(3, 3)) + 4 * np.eye(3)

        assert basis_overlap(b1 @ q, b2) == pytest.approx(basis_overlap(b1, b2), abs=1e-9)
        assert basis_overlap(b2, b1) == pytest.approx(basis_overlap(b1, b2), abs=1e-12)
        assert basis_overlap(b1, b1 @ q) == pytest.approx(1.0, abs=1e-12)

    def test_known_spaces(self):
        eye = np.eye(6, dtype=np.float32)

        assert basis_overlap(eye[:, :2], eye[:, 2:4]) == 0.0
        assert basis_overlap(eye[:, :2], eye[:, 1:3], squared=True) == pytest.approx(0.5)
        assert basis_overlap(eye[:, :2], eye[:, 1:3]) == pytest.approx(np.sqrt(0.5))
        assert basis_overlap(eye[:, :1], eye[:, :4], squared=True) == pytest.approx(0.25)

    def test_a_zero_factor_spans_nothing(self):
        zero, one = np.zeros((5, 2)), np.eye(5)[:, :2]

        assert (
            basis_overlap(zero, zero) == basis_overlap(zero, one) == basis_overlap(one, zero) == 0
        )

    def test_a_repeated_column_does_not_count_twice(self):
        e = np.eye(5)

        assert basis_overlap(e[:, [0, 0]], e[:, [0]]) == pytest.approx(1.0)


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


def _peak(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
