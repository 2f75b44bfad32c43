"""Dysco's subspaces: directions a site's activations do not use, and their fusion (numpy, pure).

A site k has at the input of a layer the activations H_k (tokens x n). Directions in which they hold
next to no energy may be changed by others without disturbing the site. It tells the coordinator a
basis A*_k of such directions, and trains itself in those that the *others* do not use.

References
----------
Zhang et al., Dysco: dynamic subspace boosting for federated fine-tuning, arXiv 2607.14367.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Double = NDArray[np.float64]
Basis = Literal["rotated", "eigh"]
Seed = int | Sequence[int]

_NONE = 1e-9
"""Eigenvalues of fused bases below this are those of directions that nobody has proposed."""
_TIE = 1e-9
"""Eigenvalues of fused bases that differ by less than this share of the largest are equal."""
_TIE_SINGLE = 2e-6
"""The same where bases are in fp32, as they travel: their rows are orthonormal to about 1e-7."""
_FUSING = 0x66757365  # keeps a choice at fusing apart from a site's draw with the same numbers


def insensitive_basis(
    gram_nn: Matrix, rank: int, seed: Seed, energy: float, *, basis: Basis = "rotated"
) -> Double:
    """Return ``rank`` orthonormal directions in which activations hold next to no energy.

    The paper's ``A*`` are the bottom ``rank`` eigenvectors of ``C = H^T H``, which minimise
    ``tr(A C A^T)``. The bottom of a real spectrum is flat: hundreds of directions are equally good,
    and which of them `eigh` returns is an accident that hardly changes from round to round, so that
    the federation would train the same few directions again and again. Here the directions up to
    an energy threshold form one subspace (see `insensitive_subspace`) and the basis inside it is
    drawn at random from ``seed``, a new one for every round.

    Parameters
    ----------
    gram_nn : ndarray, shape (n, n)
        ``H^T H``, symmetric positive semi-definite; any scale.
    rank : int
        At most n.
    seed : int or sequence of int
        Of the rotation; not used by ``eigh``.
    energy : float
        Largest share of the trace that the subspace may hold, in [0, 1).
    basis : {"rotated", "eigh"}
        ``eigh`` is the paper's literal reading.

    Returns
    -------
    a_rn : ndarray, shape (rank, n)
        Orthonormal rows, fp64.
    """
    if basis == "eigh":
        return _bottom(*_spectrum(gram_nn), rank)
    return insensitive_subspace(gram_nn, rank, energy).draw(rank, seed)


@dataclass(frozen=True)
class Subspace:
    """A subspace of R^n, by an orthonormal basis of itself or of its complement.

    Attributes
    ----------
    v_nk : ndarray, shape (n, k)
        Orthonormal columns.
    is_complement : bool
        Whether the subspace is what is orthogonal to ``v_nk``.
    """

    v_nk: Double
    is_complement: bool

    @property
    def dimension(self) -> int:
        """Dimension of the subspace."""
        n, k = self.v_nk.shape
        return int(n - k if self.is_complement else k)

    def draw(self, rank: int, seed: Seed) -> Double:
        """Return ``rank`` orthonormal rows inside, uniformly distributed: ``orth(G P)``.

        ``G`` is rank x n and normal from ``seed``, ``P`` the projection onto the subspace: the
        result depends on the subspace alone, not on the basis by which it is given.
        """
        if not 1 <= rank <= self.dimension:
            raise ValueError(f"rank must be within 1..{self.dimension}, got {rank}")
        drawn_rn = np.random.default_rng(seed).standard_normal((rank, self.v_nk.shape[0]))
        # Twice: the first projection leaves rounding errors of the size of what it removes.
        return self._orthonormal(self._orthonormal(drawn_rn))

    def _orthonormal(self, x_rn: Double) -> Double:
        inside_rn = (x_rn @ self.v_nk) @ self.v_nk.T
        return _orthonormal_rows(x_rn - inside_rn if self.is_complement else inside_rn)


def insensitive_subspace(gram_nn: Matrix, rank: int, energy: float) -> Subspace:
    """Return the span of the bottom eigenvectors with at most ``energy`` of the trace together.

    At least ``rank`` of them, and never part of a group of equal eigenvalues: within such a group
    no eigenvector is better than another.

    Parameters
    ----------
    gram_nn, rank, energy
        As for `insensitive_basis`.
    """
    values_n, vectors_nn = _spectrum(gram_nn)
    _check(len(values_n), rank, energy)
    count = _below(values_n, rank, energy, _precision(gram_nn))
    return Subspace(vectors_nn[:, :count], is_complement=False)


def insensitive_subspace_of_tokens(h_tn: Matrix, rank: int, energy: float) -> Subspace:
    """Return what `insensitive_subspace` returns for ``h^T h``, in O(n t^2) for t tokens below n.

    The n - t directions outside the rows of ``h`` hold no energy at all; of the others a
    t x t Gram tells the energy. Nothing n x n is formed.

    Parameters
    ----------
    h_tn : ndarray, shape (t, n)
        Activations, one row a token.
    rank, energy
        As for `insensitive_basis`.
    """
    tokens_tn = np.asarray(h_tn, dtype=np.float64)
    if tokens_tn.ndim != 2 or not np.isfinite(tokens_tn).all():
        raise ValueError("the activations must be a finite matrix of tokens x features")
    tokens, features = tokens_tn.shape
    _check(features, rank, energy)
    if tokens >= features:
        return insensitive_subspace(tokens_tn.T @ tokens_tn, rank, energy)
    values_t, vectors_tt = np.linalg.eigh(tokens_tn @ tokens_tn.T)
    values_n = np.concatenate([np.zeros(features - tokens), np.clip(values_t, 0, None)])
    count = _below(values_n, rank, energy, _precision(h_tn))
    sensitive_tk = vectors_tt[:, max(0, count - (features - tokens)) :]
    return Subspace(np.linalg.qr(tokens_tn.T @ sensitive_tk).Q, is_complement=True)


def random_basis(features: int, rank: int, seed: Seed) -> Double:
    """Return ``rank`` orthonormal rows of R^features, uniformly distributed."""
    return Subspace(np.zeros((features, 0)), is_complement=True).draw(rank, seed)


def fuse_bases(bases: Sequence[Matrix], rank: int, *, seed: int = 0) -> list[Double]:
    """Return for every site the directions that the others, taken together, use least.

    ``A_i`` are the top ``rank`` eigenvectors of ``S_i = sum_{j != i} A*_j^T A*_j``. With the rows
    of all sites stacked in ``A`` (Nq x n), ``S_i`` has the non-zero eigenvalues of ``A A^T``
    without the rows and columns of site i, so that one Gram of Nq x Nq serves all sites; if Nq
    exceeds n, ``S_i`` itself is formed.

    Parameters
    ----------
    bases : sequence of ndarray, shapes (q_i, n)
        Orthonormal rows, one array a site. With no row (0, n) a site receives without giving.
    rank : int
        Rows of every result, at most n.
    seed : int
        Where eigenvalues are equal, as all are while no two sites share a direction, the result is
        a random choice inside their eigenspace that this seed fixes.

    Returns
    -------
    list of ndarray, shapes (rank, n)
        Orthonormal rows in fp64, the order that of ``bases``. Two sites get each other's bases. To
        one site alone all directions are alike (``S_i = 0``): it gets random ones, not its own,
        in which it could learn nothing.
    """
    stacks = [np.asarray(basis, dtype=np.float64) for basis in bases]
    _check_bases(stacks, rank)
    tie = _TIE_SINGLE if any(basis.dtype == np.float32 for basis in bases) else _TIE
    stops = np.cumsum([len(stack) for stack in stacks])
    all_kn = np.concatenate(stacks)
    dense = len(all_kn) > all_kn.shape[1]
    gram = all_kn.T @ all_kn if dense else all_kn @ all_kn.T
    fused = []
    for index, own_qn in enumerate(stacks):
        others = [stack for k, stack in enumerate(stacks) if k != index and len(stack)]
        if len(others) == 1 and len(others[0]) == rank:
            fused.append(others[0].copy())
            continue
        if dense:
            values, vectors_nk = np.linalg.eigh(gram - own_qn.T @ own_qn)
        else:
            kept = np.ones(len(all_kn), dtype=bool)
            kept[stops[index] - len(own_qn) : stops[index]] = False
            values, vectors = np.linalg.eigh(gram[np.ix_(kept, kept)])
            vectors_nk = all_kn[kept].T @ vectors / np.sqrt(np.clip(values, _NONE, None))
        used = values > _NONE
        fused.append(_top(values[used], vectors_nk[:, used], rank, tie, (_FUSING, seed, index)))
    return fused


def orthonormality_error(a_rn: Matrix) -> float:
    """Return ``max |A A^T - I|``, 0 for orthonormal rows."""
    rows = np.asarray(a_rn, dtype=np.float64)
    return float(np.abs(rows @ rows.T - np.eye(len(rows))).max(initial=0.0))


def _spectrum(gram_nn: Matrix) -> tuple[Double, Double]:
    """Eigenvalues in ascending order, none negative, and eigenvectors as columns; fp64."""
    gram = np.asarray(gram_nn, dtype=np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not np.isfinite(gram).all():
        raise ValueError(f"the Gram must be a finite square matrix, got shape {gram.shape}")
    values_n, vectors_nn = np.linalg.eigh((gram + gram.T) / 2)
    return np.clip(values_n, 0, None), vectors_nn


def _below(values_n: Double, rank: int, energy: float, precision: float) -> int:
    """Count the bottom eigenvalues whose sum is within the threshold, at least ``rank``."""
    within = int(np.searchsorted(np.cumsum(values_n), energy * values_n.sum(), side="right"))
    last = values_n[max(within, rank) - 1]
    # Equal up to what rounding makes of equal ones.
    return int(np.searchsorted(values_n, last + precision * values_n[-1], side="right"))


def _precision(array: Matrix) -> float:
    """Relative size of the errors that eigenvalues of a Gram of this kind carry."""
    kind = array.dtype if array.dtype in (np.float32, np.float16) else np.dtype(np.float64)
    features = int(array.shape[1])
    return 8 * max(float(np.finfo(kind).eps), features * float(np.finfo(np.float64).eps))


def _bottom(values_n: Double, vectors_nn: Double, rank: int) -> Double:
    _check(len(values_n), rank, 0.0)
    return _fix_signs(vectors_nn[:, :rank].T)


def _top(values: Double, vectors_nk: Double, rank: int, tie: float, seed: Seed) -> Double:
    """Return the top eigenvectors as rows, with a seeded choice where the last ones are tied.

    All eigenvalues are positive; what is orthogonal to the eigenvectors has the eigenvalue 0.
    """
    order = np.argsort(values)[::-1]
    values, vectors_nk = values[order], vectors_nk[:, order]
    above, tied = len(values), Subspace(vectors_nk, is_complement=True)
    if rank <= len(values):
        tolerance = tie * float(values[0])
        above = int(np.sum(values > values[rank - 1] + tolerance))
        equal_nk = vectors_nk[:, above : int(np.sum(values >= values[rank - 1] - tolerance))]
        tied = Subspace(np.linalg.qr(equal_nk).Q, is_complement=False)
    rows_rn = vectors_nk[:, :above].T
    if above < rank:
        rows_rn = np.concatenate([rows_rn, tied.draw(rank - above, seed)])
    return _fix_signs(_orthonormal_rows(rows_rn))


def _orthonormal_rows(x_rn: Double) -> Double:
    q_nr, r_rr = np.linalg.qr(x_rn.T)
    signs = np.where(np.diag(r_rr) < 0, -1.0, 1.0)
    return (q_nr * signs).T


def _fix_signs(rows_rn: Double) -> Double:
    largest = np.abs(rows_rn).argmax(axis=1)
    return rows_rn * np.where(rows_rn[np.arange(len(rows_rn)), largest] < 0, -1.0, 1.0)[:, None]


def _check(features: int, rank: int, energy: float) -> None:
    if not 1 <= rank <= features:
        raise ValueError(f"rank must be within 1..{features}, got {rank}")
    if not 0 <= energy < 1:
        raise ValueError(f"energy must be in [0, 1), got {energy}")


def _check_bases(stacks: Sequence[Double], rank: int) -> None:
    shapes = [stack.shape for stack in stacks]
    if not stacks or any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise ValueError(f"expected bases (q, n) of one width n, got shapes {shapes}")
    _check(shapes[0][1], rank, 0.0)
