"""Client half of `dysco` and `random-boost`: train a fresh B and the heads, keep A."""

from __future__ import annotations

from client_app.methods.base import LocalRule


class Dysco(LocalRule):
    """Freeze every A for the round; what earlier rounds have learned is in the base weights."""

    moves_basis = True

    def trainable(self, name: str) -> bool:
        """Everything but the A of a pair."""
        return not name.endswith(".lora_A")
