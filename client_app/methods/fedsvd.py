"""Client half of `fedsvd`: train B and the head, keep A (FedSVD, arXiv 2505.12805)."""

from __future__ import annotations

from client_app.methods.base import LocalRule


class FedSvd(LocalRule):
    """Freeze every A for the round; the server re-orthonormalises it between rounds."""

    moves_basis = True

    def trainable(self, name: str) -> bool:
        """Everything but the A of a pair."""
        return not name.endswith(".lora_A")
