"""One validated update of one site, and the weights of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedapp.adapter import Adapter
from fedapp.codec import Packed
from fedapp.exchange import Metrics
from fedapp.increments import add


@dataclass
class Update:
    """What one site sent in a round; it has passed `fedapp.validation.check_update`.

    Attributes
    ----------
    site : str
    weight : float
        Number of training examples, positive.
    packed : Packed
        The update as it came.
    payloads : mapping of str to Packed
        Everything the site sent, ``"adapter"`` included.
    numbers : mapping of str to float
        What the site reports besides metrics.
    decoded : dict of str to Adapter
        Payloads that are decoded already, by name.
    bases : mapping of str to Adapter
        What the site received, by the name of the payload that is an increment on it.
    """

    site: str
    weight: float
    packed: Packed
    payloads: Mapping[str, Packed] = field(default_factory=dict)
    numbers: Metrics = field(default_factory=dict)
    decoded: dict[str, Adapter] = field(default_factory=dict, repr=False)
    bases: Mapping[str, Adapter] = field(default_factory=dict, repr=False)

    @property
    def adapter(self) -> Adapter:
        """The update in fp32.

        An fp32 payload is decoded once, without a copy. A compressed one is decoded at every
        access, so that the memory of a merge does not grow with the number of sites: bind it to a
        local name while in use, and take one update after the other.
        """
        return self._decode("adapter", self.packed)

    def payload(self, name: str) -> Adapter:
        """Return another payload in fp32, see `adapter`."""
        return self._decode(name, self.payloads[name])

    def _decode(self, name: str, packed: Packed) -> Adapter:
        if name in self.decoded:
            return self.decoded[name]
        adapter = packed.unpack()
        if name in self.bases:
            adapter = add(self.bases[name], adapter)
        if packed.layout.codec == "fp32":
            self.decoded[name] = adapter
        return adapter
