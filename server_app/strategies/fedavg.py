"""FedAvg of the LoRA factors (FedIT): the baseline that every federated LoRA method starts from."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from server_app.merges import average_factors
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update


class FedAvg(BaseStrategy):
    """Average A, B and the heads separately, weighted by training examples.

    ``A = sum_k p_k A_k``, ``B = sum_k p_k B_k``, ``p_k = n_k / sum_j n_j``: the same numbers, to
    the last bit, as Flower's own ``FedAvg`` on the same fp32 arrays in the same order.

    Notes
    -----
    The model that results is ``B A``, not the mean of the sites' models ``sum_k p_k B_k A_k``: the
    cross terms ``p_j p_k B_j A_k`` enter as well, and the result depends on the basis in which each
    site writes its product. The diagnostic ``merge_error`` reports the size of that error.

    References
    ----------
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    arXiv 1602.05629. Zhang et al., Towards Building the Federated GPT (FedIT), arXiv 2305.05644.
    """

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return the weighted means of the factors and heads."""
        return average_factors(updates)
