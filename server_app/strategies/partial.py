"""What the methods share of which only some arrays travel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from fedapp.adapter import Adapter
from server_app.diagnostics import round_diagnostics
from server_app.merges import Part, average_factors
from server_app.strategies.base import BaseStrategy
from server_app.strategies.seeded import check_seeded
from server_app.updates import Update


class Partial(BaseStrategy):
    """Average what travels; the other arrays of the model stay as the seeded adapter has them.

    What travels goes as tensors by their names, such as ``"q.lora_B"``: half of the bytes.
    """

    _part: tuple[Adapter, Adapter] | None = None

    @abstractmethod
    def travels(self, name: str) -> bool:
        """Whether the array ``name`` is sent and received, as in the client half."""

    def begin(self, initial: Adapter) -> None:
        """Take the seeded adapter, see `check_seeded`."""
        check_seeded(self, initial, "sends part of the adapter, and sites derive the rest by seed")
        super().begin(initial)

    def contributes(self, name: str) -> bool:
        """What travels."""
        return self.travels(name)

    def payloads(self, round: int, site: str) -> dict[str, Adapter]:
        """Return what travels of the model."""
        if self._part is None or self._part[0] is not self.adapter:
            arrays = {name: array for name, array in self.adapter.arrays() if self.travels(name)}
            self._part = (self.adapter, Adapter({}, arrays))
        return {"adapter": self._part[1]}

    def evaluation_payloads(self, site: str) -> dict[str, Adapter]:
        """Return the same."""
        return self.payloads(0, site)

    def expected(self, round: int, site: str) -> dict[str, Adapter]:
        """Return the same."""
        return self.payloads(round, site)

    def merge(self, round: int, updates: Sequence[Update]) -> Adapter:
        """Return the model with the weighted means of what travels."""
        return self._whole(average_factors(updates))

    def diagnostics(
        self, round: int, sent: Adapter, updates: Sequence[Update], merged: Adapter
    ) -> dict[str, float]:
        """Compare the sites' whole adapters, of which the rest is the model's."""
        whole = [Part(update.weight, self._whole(update.adapter)) for update in updates]
        return round_diagnostics(sent, whole, merged)

    def whole(self, part: Adapter) -> Adapter | None:
        """Return the model with these of its arrays."""
        return self._whole(part)

    def _whole(self, part: Adapter) -> Adapter:
        arrays = part.tensors
        return self.adapter.map(lambda name, array: arrays.get(name, array))
