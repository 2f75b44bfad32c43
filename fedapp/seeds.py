"""Seeds derived from names, so that every random choice is reproducible and independent."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *parts: str | int) -> int:
    """Return a 63-bit seed that depends on ``seed`` and on every part, in order.

    Examples
    --------
    >>> derive_seed(0, "sampling", 3) == derive_seed(0, "sampling", 3)
    True
    >>> derive_seed(0, "sampling", 3) == derive_seed(0, "sampling", 4)
    False
    """
    text = "\x1f".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
