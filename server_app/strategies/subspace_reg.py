"""Subspace-Reg, server half: one shared orthonormal basis B_g for the next round."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from server_app.algorithms.base import Weighted
from server_app.merges import Part, orthonormal_basis
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update


class SubspaceReg(BaseStrategy):
    """Sum the products exactly; ``B_g = U_r`` spans the shared subspace, ``A_g = S_r V_r^T / s``.

    ``DW = sum_k p_k s B_k A_k ~ U_r S_r V_r^T``. The norm that truncation loses is given back as
    ``subspace-reg.preserve-norm`` says (`server_app.merges.orthonormal_basis`). The sites' half
    adds ``mu/2 ||s B A - DW_g||_F^2 + alpha/2 ||B - B_g||_F^2 + lambda/2 (||A||^2 + ||B||^2)`` to
    the loss, with ``DW_g = s B_g A_g`` and ``B_g`` as they were sent.

    Notes
    -----
    The adapter is cumulative and the base model stays as it was. The paper's printed Algorithm 1
    adds the merged product to the base weights *and* starts the sites from ``B_g A_g``, which would
    count it twice; the released code does not. The first round starts from B = 0 as PEFT does (also
    the released code), so its ``B_g`` is zero; the paper asks for an orthonormal one.

    References
    ----------
    Senarath, Muralitharan, Asif, Subspace-Constrained Federated Learning with LoRA,
    arXiv 2606.22724.
    """

    moves_basis = True

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return the shared basis and its coefficients."""
        return orthonormal_basis(updates, self.config.subspace_reg.preserve_norm)

    def recompose(self, parts: Weighted) -> Adapter:
        """Return the orthonormal basis of a sum and its coefficients."""
        terms = [Part(weight, adapter) for weight, adapter in parts]
        return orthonormal_basis(terms, self.config.subspace_reg.preserve_norm, normalise=False)
