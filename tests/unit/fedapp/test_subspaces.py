"""Dysco's bases against dense eigenproblems, on ordinary and on degenerate spectra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.subspaces import (
    fuse_bases,
    insensitive_basis,
    insensitive_subspace,
    insensitive_subspace_of_tokens,
    orthonormality_error,
    random_basis,
)

ORTHONORMAL = 1e-12


def gram_of(values, seed=0):
    """A Gram with the given spectrum and random eigenvectors, ascending."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return (vectors * np.asarray(values, float)) @ vectors.T, vectors


def bases_of(count, rank, features, seed=0):
    return [random_basis(features, rank, (seed, k)) for k in range(count)]


def objective(a_rn, s_nn):
    return float(np.trace(a_rn @ s_nn @ a_rn.T))


def projection(rows):
    return rows.T @ rows


# ---- one site ---------------------------------------------------------------------------------


def test_eigh_is_the_papers_literal_reading():
    gram, vectors = gram_of([0.1, 0.2, 0.5, 1, 2, 3, 4])

    basis = insensitive_basis(gram, 3, seed=5, energy=0.5, basis="eigh")

    assert orthonormality_error(basis) < ORTHONORMAL
    np.testing.assert_allclose(projection(basis), projection(vectors[:, :3].T), atol=1e-10)
    assert objective(basis, gram) == pytest.approx(0.8)
    np.testing.assert_array_equal(
        basis, insensitive_basis(gram, 3, seed=6, energy=0.1, basis="eigh")
    )


def test_the_threshold_is_a_share_of_all_energy():
    gram, vectors = gram_of([0.0, 0.1, 0.2, 0.7, 4, 5])  # trace 10

    for energy, dimension in [(0.0, 2), (0.01, 2), (0.031, 3), (0.09, 3), (0.11, 4), (0.6, 5)]:
        subspace = insensitive_subspace(gram, 2, energy)
        assert subspace.dimension == dimension
        np.testing.assert_allclose(
            subspace.v_nk @ subspace.v_nk.T, projection(vectors[:, :dimension].T), atol=1e-9
        )
        basis = insensitive_basis(gram, 2, seed=1, energy=energy)
        assert objective(basis, gram) <= max(energy * 10, 0.1) + 1e-9


def test_the_basis_is_drawn_anew_by_every_seed_and_stays_inside():
    gram, vectors = gram_of([0, 0, 0, 0, 0, 0, 1, 1])
    drawn = [insensitive_basis(gram, 2, seed=(0, round), energy=1e-6) for round in range(200)]

    for basis in drawn:
        assert orthonormality_error(basis) < ORTHONORMAL
        assert objective(basis, gram) < 1e-12
    np.testing.assert_array_equal(drawn[3], insensitive_basis(gram, 2, (0, 3), energy=1e-6))
    assert np.linalg.norm(drawn[0] @ drawn[1].T) < 1.4  # other directions
    # Uniform: on average every one of the six directions is used alike.
    mean = np.mean([projection(basis) for basis in drawn], axis=0)
    np.testing.assert_allclose(mean, projection(vectors[:, :6].T) * 2 / 6, atol=0.15)


@pytest.mark.parametrize("values", [[1.0] * 7, [0.0] * 7, [1e-30] * 7])
def test_of_a_flat_spectrum_every_direction_is_as_good(values):
    gram, _ = gram_of(values)

    assert insensitive_subspace(gram, 2, energy=0.01).dimension == 7
    assert orthonormality_error(insensitive_basis(gram, 7, seed=0, energy=0.01)) < ORTHONORMAL


def test_equal_eigenvalues_are_taken_together():
    # The threshold alone would cut the group of three; rank alone would take one of it.
    gram, _ = gram_of([0.0, 1, 1, 1, 50, 60])

    assert insensitive_subspace(gram, 2, energy=0.0).dimension == 4
    assert insensitive_subspace(gram, 1, energy=0.02).dimension == 4
    assert insensitive_subspace(gram, 1, energy=0.0).dimension == 1


def test_noise_leaves_a_usable_subspace_where_a_cut_at_rounding_leaves_the_bottom_alone():
    rng = np.random.default_rng(0)
    h_tn = rng.standard_normal((500, 64))
    h_tn[:, 16:] *= 0.05
    gram = h_tn.T @ h_tn

    assert insensitive_subspace(gram, 8, energy=0.02).dimension == 48
    assert insensitive_subspace(gram, 8, energy=1e-10).dimension == 8


def test_a_gram_in_fp32_gives_the_subspace_of_one_in_fp64():
    rng = np.random.default_rng(0)
    h_tn = rng.standard_normal((20, 45)) * np.geomspace(1e3, 1, 45)  # outlying features
    exact, rounded = h_tn.T @ h_tn, h_tn.astype(np.float32).T @ h_tn.astype(np.float32)

    assert rounded.dtype == np.float32
    assert insensitive_subspace(exact, 4, energy=1e-9).dimension == 25
    assert insensitive_subspace(rounded, 4, energy=1e-9).dimension == 25
    basis = insensitive_basis(rounded, 4, seed=0, energy=1e-9)
    assert np.linalg.norm(h_tn @ basis.T) < 1e-3 * np.linalg.norm(h_tn)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 30),
    features=st.integers(1, 23),
    energy=st.sampled_from([0.0, 1e-6, 0.01, 0.2, 0.7]),
    deficit=st.integers(1, 3),
    data=st.data(),
)
def test_tokens_and_their_gram_give_one_and_the_same_basis(tokens, features, energy, deficit, data):
    rank = data.draw(st.integers(1, features))
    rng = np.random.default_rng(features * 100 + tokens)
    h_tn = rng.standard_normal((tokens, features)) * np.geomspace(1, 0.05, features)
    h_tn[tokens // deficit :] = h_tn[0]  # rank-deficient, too

    by_gram = insensitive_subspace(h_tn.T @ h_tn, rank, energy)
    by_tokens = insensitive_subspace_of_tokens(h_tn, rank, energy)

    assert by_tokens.dimension == by_gram.dimension >= rank
    a, b = by_gram.draw(rank, 7), by_tokens.draw(rank, 7)
    assert max(orthonormality_error(a), orthonormality_error(b)) < ORTHONORMAL
    np.testing.assert_allclose(b, a, atol=1e-5)


def test_fewer_tokens_than_rank_leave_all_other_directions():
    h_tn = np.random.default_rng(0).standard_normal((3, 101)).astype(np.float32)

    subspace = insensitive_subspace_of_tokens(h_tn, 8, energy=1e-3)

    assert subspace.dimension == 98
    assert np.abs(h_tn @ subspace.draw(8, 0).T).max() < 1e-12


def test_random_basis_is_orthonormal_and_seeded():
    basis = random_basis(37, 5, (1, 2))
    assert basis.shape == (5, 37)
    assert orthonormality_error(basis) < ORTHONORMAL
    np.testing.assert_array_equal(basis, random_basis(37, 5, (1, 2)))
    assert np.abs(basis - random_basis(37, 5, (1, 3))).max() > 0.1


@pytest.mark.parametrize(
    ("gram", "rank", "energy", "words"),
    [
        (np.eye(4), 5, 0.1, "rank must be within 1..4, got 5"),
        (np.eye(4), 0, 0.1, "rank must be within 1..4, got 0"),
        (np.eye(4), 2, 1.0, "energy must be in"),
        (np.ones((4, 3)), 2, 0.1, "square"),
        (np.full((4, 4), np.nan), 2, 0.1, "finite"),
    ],
)
def test_what_makes_no_sense_is_refused(gram, rank, energy, words):
    with pytest.raises(ValueError, match=words):
        insensitive_basis(gram, rank, 0, energy)
    with pytest.raises(ValueError, match=r"rank|square|finite|energy"):
        insensitive_basis(gram, 5, 0, energy, basis="eigh")


# ---- all sites --------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    sites=st.integers(2, 7),
    rank=st.integers(1, 4),
    more=st.integers(0, 2),
    features=st.sampled_from([7, 11, 23, 41]),
)
def test_fused_bases_are_the_dense_optimum(sites, rank, more, features):
    bases = bases_of(sites, rank + more, features, seed=features)
    bases[0] = bases[-1].copy()  # two sites that agree

    fused = fuse_bases(bases, rank)

    for index, a_rn in enumerate(fused):
        assert a_rn.shape == (rank, features)
        assert orthonormality_error(a_rn) < 1e-10
        s_nn = sum(projection(b) for k, b in enumerate(bases) if k != index)
        top = np.linalg.eigvalsh(s_nn)[-rank:].sum()
        assert objective(a_rn, s_nn) == pytest.approx(top, rel=1e-9)


def test_two_sites_exchange_their_bases():
    first, second = bases_of(2, 3, 9)
    fused = fuse_bases([first, second], 3)
    np.testing.assert_array_equal(fused[0], second)
    np.testing.assert_array_equal(fused[1], first)


def test_one_site_alone_gets_random_directions_and_not_those_it_cannot_learn_in():
    (own,) = bases_of(1, 3, 9)
    (alone,) = fuse_bases([own], 2)
    assert orthonormality_error(alone) < ORTHONORMAL
    assert np.linalg.norm(alone @ projection(own)) < 1.4
    assert np.abs(alone - fuse_bases([own], 2, seed=1)[0]).max() > 0.1
    np.testing.assert_array_equal(alone, fuse_bases([own], 2)[0])


@pytest.mark.parametrize("features", [4, 12])
def test_where_the_others_give_too_few_rows_random_ones_complete_them(features):
    first, second = bases_of(2, 2, features)
    fused = fuse_bases([first, second], 3)
    for a_rn, other in zip(fused, [second, first], strict=True):
        assert orthonormality_error(a_rn) < 1e-10
        assert objective(a_rn, projection(other)) == pytest.approx(2)


def test_of_two_sites_with_more_rows_each_gets_some_of_the_others():
    first, second = bases_of(2, 5, 12)
    a, b = fuse_bases([first, second], 2)
    np.testing.assert_allclose(a @ projection(second), a, atol=1e-12)
    np.testing.assert_allclose(b @ projection(first), b, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_ties_are_broken_by_the_seed_and_not_by_rounding(dense):
    """Orthogonal bases: every eigenvalue of S is 1. Rounding must not choose."""
    features = 8 if dense else 40
    axes = np.eye(features)
    bases = [axes[0:2], axes[2:4], axes[4:6], axes[6:8]]
    if dense:
        bases.append(axes[[0, 3]])
    shaken = [b + 1e-14 * np.random.default_rng(k).standard_normal(b.shape)
              for k, b in enumerate(bases)]  # fmt: skip

    first, again, other = fuse_bases(bases, 2), fuse_bases(shaken, 2), fuse_bases(bases, 2, seed=1)

    for a, b in zip(first, again, strict=True):
        np.testing.assert_allclose(projection(a), projection(b), atol=1e-7)
    if not dense:
        assert max(np.abs(a - b).max() for a, b in zip(first, other, strict=True)) > 0.1
    # Inside the span of the others, and uncommitted to any one of them.
    assert np.abs(first[0][:, 8:]).max(initial=0) < 1e-12


@pytest.mark.parametrize("sites", [2, 4])
def test_bases_rounded_to_fp32_are_tied_as_they_were(sites):
    """As they travel. In fp64 their eigenvalues are 1 but for 1e-7, which must not choose."""
    axes, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 40)))
    bases = [axes[5 * k : 5 * k + 5] for k in range(sites)]
    rounded = [basis.astype(np.float32) for basis in bases]

    first, other = fuse_bases(rounded, 2), fuse_bases(rounded, 2, seed=1)

    for a, b, exact in zip(first, other, fuse_bases(bases, 2), strict=True):
        np.testing.assert_allclose(projection(a), projection(exact), atol=1e-5)
        assert np.abs(projection(a) - projection(b)).max() > 0.1


def test_a_site_without_a_basis_gets_what_all_others_leave_free():
    bases = bases_of(3, 2, 9)
    absent = fuse_bases([*bases, np.zeros((0, 9))], 2)
    s_nn = sum(projection(b) for b in bases)
    assert objective(absent[3], s_nn) == pytest.approx(np.linalg.eigvalsh(s_nn)[-2:].sum())
    for with_absent, without in zip(absent, fuse_bases(bases, 2), strict=False):
        np.testing.assert_allclose(projection(with_absent), projection(without), atol=1e-9)


def test_no_cross_talk_where_every_site_tells_its_whole_null_space():
    """Orthogonal partitions: what site k trains does not move what site j computes."""
    sites, share, rank = 4, 6, 3
    features = sites * share
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((features, features)))
    inputs = [
        rng.standard_normal((50, share)) @ rotation[k * share : (k + 1) * share]
        for k in range(sites)
    ]
    bases = [
        insensitive_basis(h.T @ h, features - share, seed=k, energy=1e-9)
        for k, h in enumerate(inputs)
    ]

    fused = fuse_bases(bases, rank)

    for k, a_rn in enumerate(fused):
        for j, h in enumerate(inputs):
            heard = np.linalg.norm(h @ a_rn.T) / np.linalg.norm(h)
            assert heard < 1e-6 if j != k else heard > 0.3


def test_with_two_sites_r_rows_are_enough_for_no_cross_talk():
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((30, 10)) * mask for mask in np.eye(2).repeat(5, axis=1)]
    bases = [insensitive_basis(h.T @ h, 4, seed=k, energy=1e-9) for k, h in enumerate(inputs)]
    first, second = fuse_bases(bases, 4)
    assert np.abs(inputs[1] @ first.T).max() < 1e-9
    assert np.abs(inputs[0] @ second.T).max() < 1e-9
    assert np.abs(inputs[0] @ first.T).max() > 1


@pytest.mark.parametrize(
    ("shapes", "rank", "words"),
    [
        ([], 1, "one width"),
        ([(2, 5), (2, 6)], 1, "one width"),
        ([(2, 5), (3, 5)], 6, "rank must be within 1..5"),
        ([(2, 5), (2, 5)], 0, "rank must be within"),
    ],
)
def test_bases_that_cannot_be_fused_are_refused(shapes, rank, words):
    with pytest.raises(ValueError, match=words):
        fuse_bases([np.eye(*shape) for shape in shapes], rank)
