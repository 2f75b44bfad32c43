"""One place for what the coordinator says while it works."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("fedapp")


def log(message: str) -> None:
    """Say something at level INFO."""
    _setup()
    _LOGGER.info(message)


def warn(message: str) -> None:
    """Say something at level WARNING."""
    _setup()
    _LOGGER.warning(message)


def _setup() -> None:
    # Flower's processes leave the root logger at WARNING; without a handler nothing would show.
    if not _LOGGER.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.INFO)
