"""Client half of the methods without a shared model: a site goes on from its own mixed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_app.methods.base import LocalRule
from fedapp.adapter import Adapter


class PeerModel(LocalRule):
    """Train the site's own model; in its first round the seeded one, which all sites share."""

    keeps_state = True
    personal = True
    _model: Adapter | None = None

    def start(self, received: Mapping[str, Adapter]) -> Adapter:
        """Return what the site mixed in its last round."""
        return received["adapter"] if self._model is None else self._model

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the model that `client_app.peer_round` has kept."""
        self._model = state.get("model")
