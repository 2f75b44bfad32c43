"""What every setting is unless somebody says otherwise, as one digest."""

from __future__ import annotations

import hashlib

from fedapp.config import RunConfig


def defaults_digest() -> str:
    """Return SHA-256 of all defaults: who has the same makes the same of `RunConfig.changed`."""
    return hashlib.sha256(RunConfig().to_json().encode()).hexdigest()
