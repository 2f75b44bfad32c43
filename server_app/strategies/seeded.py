"""Methods of which every site derives its first model, or part of it, from the run's seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedapp.adapter import Adapter
from fedapp.errors import ConfigError

if TYPE_CHECKING:
    from server_app.strategies.base import BaseStrategy


def check_seeded(strategy: BaseStrategy, initial: Adapter, why: str) -> None:
    """Refuse to begin with another adapter than the seeded one.

    Parameters
    ----------
    strategy : BaseStrategy
        Before the handshake nothing can be compared.
    initial : Adapter
    why : str
        What the method does, for the sentence.

    Raises
    ------
    ConfigError
    """
    roster = strategy.roster
    if roster is not None and initial.digest() != roster.reference.initial_digest:
        raise ConfigError(f"method {strategy.config.method} {why}; start it without initial arrays")
