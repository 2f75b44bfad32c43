"""What every message of a run is made of: packed adapters, the run's place, the sites' settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.adapter import Adapter
from fedapp.codec import Packed, pack
from fedapp.config import RunConfig


@dataclass(frozen=True)
class RunPlace:
    """Which run it is and where its files are, see `fedapp.exchange.Instruction`."""

    run: str = ""
    progress_file: str = ""
    state_folder: str = ""


NOWHERE = RunPlace()


class Packer:
    """Packs adapters for the way down, always in fp32, the same object only once.

    What a site trains on, what it sends an increment on, and what is tested is then bit for bit the
    coordinator's model, and an orthonormal factor arrives orthonormal.
    """

    def __init__(self) -> None:
        self._packed: dict[int, tuple[Adapter, Packed]] = {}

    def pack(self, payloads: Mapping[str, Adapter]) -> dict[str, Packed]:
        """Return the payloads as they travel."""
        return {name: self._one(adapter) for name, adapter in payloads.items()}

    def _one(self, adapter: Adapter) -> Packed:
        if id(adapter) not in self._packed:
            self._packed[id(adapter)] = (adapter, pack(adapter))
        return self._packed[id(adapter)][1]


def site_config(config: RunConfig) -> RunConfig:
    """Return the settings as a site gets them: without the coordinator's own paths."""
    return config.with_changes({"name": "", "output-dir": "", "resume": ""})
