"""Norms, distances and alignment against dense numpy and scipy.

The oracle forms every m x n matrix; the code under test never needs one.
"""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak
from products import TOLERANCE, federations, shuffle, turn

from fedapp import lowrank_sums
from fedapp.lowrank import (
    basis_overlap,
    cancellation_ratio,
    client_global_cosines,
    increment,
    inner_products,
    pairwise_cosines,
    product_distance,
    product_inner,
    product_norm,
    sum_norm,
)


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
        turned = turn(federation)
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
        order, pairs, weights = shuffle(federation)
        turned = turn(federation)
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

        taken = peak(lambda: (sum_norm(pairs, weights), client_global_cosines(pairs, weights)))

        assert taken < 512 * 512 * 8  # one matrix


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
