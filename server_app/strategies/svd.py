"""Exact aggregation of the products, truncated to rank r (FlexLoRA and its relatives)."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from server_app.algorithms.base import Weighted
from server_app.merges import Part, sum_products
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update


class Svd(BaseStrategy):
    """Sum the products exactly, keep the r largest singular values, split them over B and A.

    ``DW = sum_k p_k s B_k A_k ~ U_r S_r V_r^T``; ``svd.factorisation`` says where ``S_r / s`` goes:

    * ``symmetric`` (default): its square root on both factors;
    * ``orthonormal-a``: on B, as FlexLoRA does;
    * ``orthonormal-b``: on A, the server half of Subspace-Reg without its penalty.

    ``svd.preserve-norm`` multiplies ``S_r`` by ``||DW||_F / ||DW_r||_F``.

    Notes
    -----
    No m x n matrix is formed while the stacked rank of all sites stays below m and n
    (`fedapp.lowrank.weighted_sum_svd`). All sites have the same rank here; FlexLoRA's truncation
    to each client's own rank is not needed.

    References
    ----------
    Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
    Resources (FlexLoRA), arXiv 2402.11505, section 3.
    """

    moves_basis = True

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return the best rank-r approximation of the weighted sum of products."""
        settings = self.config.svd
        return sum_products(updates, settings.factorisation, settings.preserve_norm)

    def recompose(self, parts: Weighted) -> Adapter:
        """Return the best rank-r approximation of a sum, split in the same way."""
        settings = self.config.svd
        terms = [Part(weight, adapter) for weight, adapter in parts]
        return sum_products(terms, settings.factorisation, settings.preserve_norm, normalise=False)
