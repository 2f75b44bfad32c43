"""What the methods share of which only some arrays travel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from client_app.methods.base import LocalRule
from fedapp.adapter import Adapter, Array
from fedapp.errors import UpdateRefused


class Partial(LocalRule):
    """Receive and send some arrays, as tensors by their names; know the others by oneself.

    Before anything was kept the others are those of the seeded adapter, which every site derives
    alike and which the handshake has compared.
    """

    @abstractmethod
    def travels(self, name: str) -> bool:
        """Whether the array ``name`` (as in ``Adapter.arrays``) is sent and received."""

    def contributes(self, name: str) -> bool:
        """What travels and is trained."""
        return self.travels(name) and self.trainable(name)

    def own(self) -> Mapping[str, Array]:
        """Return arrays that the site kept since its last round, by name."""
        return {}

    def start(self, received: Mapping[str, Adapter]) -> Adapter:
        """Return the model: what was received, then what the site kept, then the seeded numbers.

        Raises
        ------
        UpdateRefused
            If other arrays were received than those that travel.
        """
        initial = self.parameters.initial(self.config.seed)
        arrived = dict(received["adapter"].arrays())
        expected = {name for name, _ in initial.arrays() if self.travels(name)}
        if odd := sorted(expected ^ arrived.keys()):
            raise UpdateRefused(
                f"the coordinator's adapter {'lacks' if odd[0] in expected else 'has an unknown'} "
                f"array '{odd[0]}'; {len(expected)} arrays travel, {len(arrived)} came",
                reason="wrong-layout",
            )
        known = {**self.own(), **arrived}
        return initial.map(lambda name, array: known.get(name, array))

    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return what travels."""
        trained = self.parameters.read().arrays()
        return {"adapter": Adapter({}, {n: array for n, array in trained if self.travels(n)})}
