"""FFA-LoRA: one random A for ever, so that averaging B is exact."""

from __future__ import annotations

from server_app.strategies.partial import Partial


class FfaLora(Partial):
    """``B = sum_k p_k B_k`` over the A of the seeded adapter; heads likewise.

    ``s (sum_k p_k B_k) A = sum_k p_k DW_k``: exact, of rank r; only B and the heads travel. What
    a layer can learn lies in the row space of one random A for ever.

    References
    ----------
    Sun et al., Improving LoRA in Privacy-preserving Federated Learning, arXiv 2403.12313.
    """

    def travels(self, name: str) -> bool:
        """Everything but the A of a pair."""
        return not name.endswith(".lora_A")
