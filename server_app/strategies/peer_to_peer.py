"""Methods without a shared model: the coordinator calls the rounds and collects metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from fedapp.adapter import Adapter
from fedapp.errors import ConfigError
from server_app.strategies.base import BaseStrategy
from server_app.strategies.seeded import check_seeded
from server_app.updates import Update


class PeerToPeer(BaseStrategy):
    """Every site has a model of its own and mixes it with its neighbours', see `fedapp.peer_rules`.

    The coordinator never receives one. What it holds, and exports, is the seeded adapter that all
    began with and that every site derives by itself.
    """

    def begin(self, initial: Adapter) -> None:
        """Take the seeded adapter, see `check_seeded`."""
        check_seeded(self, initial, "lets every site derive its first model from the seed")
        super().begin(initial)

    def expected(self, round: int, site: str) -> dict[str, Adapter]:
        """Nothing: no site sends its model to the coordinator."""
        return {}

    def whole(self, part: Adapter) -> Adapter | None:
        """Return None: the coordinator knows no site's model."""
        return None

    def merge(self, round: int, updates: Sequence[Update]) -> NoReturn:
        """Refuse: only Flower's own loop could ask.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError(
            f"method {self.config.method} mixes models at the sites, in rounds of two phases that "
            "Flower's own loop does not have; start it with `fedapp run`, or `fedapp peer` at "
            "every site"
        )
