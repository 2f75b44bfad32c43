"""FedSVD: sites train B over a shared A, which the server re-orthonormalises every round."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from server_app.algorithms.base import Weighted
from server_app.merges import Part, average_b_then_svd, sum_products
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update


class FedSvd(BaseStrategy):
    """Average B, multiply by the A that all sites share, and rotate the pair by its SVD.

    ``DW = s (sum_k p_k B_k) A = U_r S_r V_r^T``, then ``A <- V_r^T`` (orthonormal rows) and
    ``B <- U_r S_r / s``. Because A is the same everywhere the average is exact, and because the
    product has rank r nothing is truncated: the model does not change, only the basis in which the
    next round trains B.

    Notes
    -----
    The A of round 1 is the seeded LoRA initialisation, not yet orthonormal. The paper's purpose is
    differential privacy: with A frozen, clipping and noise act on one linear factor. This class
    adds no noise. An update whose A is not, to the last bit, the A that was sent is refused.

    References
    ----------
    Lee et al., FedSVD: Adaptive Orthogonalization for Private Federated Learning with LoRA,
    arXiv 2505.12805.
    """

    moves_basis = True

    def contributes(self, name: str) -> bool:
        """Everything but the A of a pair."""
        return not name.endswith(".lora_A")

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return the mean of B times A in the basis where A is orthonormal."""
        return average_b_then_svd(updates, self.adapter)

    def recompose(self, parts: Weighted) -> Adapter:
        """Return a sum with A orthonormal; nothing is lost where all parts have A's row space."""
        terms = [Part(weight, adapter) for weight, adapter in parts]
        return sum_products(terms, "orthonormal-a", normalise=False)
