"""Client half of `fedsa-lora`: train everything, share A alone (arXiv 2410.01463)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_app.methods.partial import Partial
from fedapp.adapter import Adapter, Array
from fedapp.state import State


class FedSaLora(Partial):
    """Keep B and the heads at the site, on its disk, from round to round; A is averaged.

    The model of a site is the shared A with its own B and heads: that is what is evaluated as
    received, trained, and tested at the end.
    """

    keeps_state = True
    personal = True
    _own: Mapping[str, Array] = {}

    def travels(self, name: str) -> bool:
        """The A of every pair."""
        return name.endswith(".lora_A")

    def own(self) -> Mapping[str, Array]:
        """Return B and the heads after the site's last training."""
        return self._own

    def state_dict(self) -> State:
        """B and the heads as they are now."""
        arrays = self.parameters.read().arrays()
        return {"own": Adapter({}, {n: array for n, array in arrays if not self.travels(n)})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._own = dict(state["own"].arrays())
