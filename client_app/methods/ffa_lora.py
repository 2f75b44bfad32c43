"""Client half of `ffa-lora`: train B and the head on an A that never changes (2403.12313)."""

from __future__ import annotations

from client_app.methods.partial import Partial


class FfaLora(Partial):
    """Keep every A as the seeded adapter has it; B and the heads are trained and travel."""

    def trainable(self, name: str) -> bool:
        """Everything but the A of a pair."""
        return not name.endswith(".lora_A")

    def travels(self, name: str) -> bool:
        """What is trained."""
        return self.trainable(name)
