"""The server-optimiser seam: what happens between the merged model and the next global one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedapp.adapter import Adapter
from fedapp.state import State


class ServerOptimizer(Protocol):
    """Turns the merged model into the next global model, such as by momentum."""

    def step(self, previous: Adapter, merged: Adapter) -> Adapter:
        """Return the next global model."""

    def state_dict(self) -> State:
        """What must survive until the next round."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""


class Replace:
    """The merged model becomes the global one; nothing is remembered."""

    def step(self, previous: Adapter, merged: Adapter) -> Adapter:
        """Return ``merged``."""
        return merged

    def state_dict(self) -> State:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""
