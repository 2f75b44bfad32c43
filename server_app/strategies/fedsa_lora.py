"""FedSA-LoRA: the sites share A; every site has a B and a head of its own."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.adapter import Adapter
from server_app.strategies.partial import Partial
from server_app.updates import Update


class FedSaLora(Partial):
    """``A = sum_k p_k A_k``; B and heads never leave their site.

    There is no global model: the model of a site is the shared A with its own B and heads. What
    the coordinator exports is the trained A with B = 0 and the seeded heads, a start for a site
    that trains its own B and head, not a model to predict with.

    References
    ----------
    Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning,
    arXiv 2410.01463.
    """

    def travels(self, name: str) -> bool:
        """The A of every pair."""
        return name.endswith(".lora_A")

    def whole(self, part: Adapter) -> Adapter | None:
        """Return None: a site's B is its own."""
        return None

    def diagnostics(
        self, round: int, sent: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Return nothing: the coordinator knows no site's product."""
        return {}
