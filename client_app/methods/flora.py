"""Client half of `flora`: train a fresh pair and the heads."""

from __future__ import annotations

from client_app.methods.base import LocalRule


class Flora(LocalRule):
    """Plain local training on top of what earlier rounds have folded into the base weights."""

    moves_basis = True
