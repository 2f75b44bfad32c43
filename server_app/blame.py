"""Which site to look at first when a merge fails though every update is sound by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from server_app.updates import Update


def largest_update(updates: Sequence[Update]) -> str:
    """Name the site whose update holds the largest number, as half a sentence."""
    sizes = {update.site: _largest(update) for update in updates}
    site = max(sizes, key=lambda name: (sizes[name], name))
    return f"site {site} sent the largest numbers (up to {sizes[site]:.3g}), look there first"


def _largest(update: Update) -> float:
    arrays = (array for _, array in update.adapter.arrays())
    return max((float(np.abs(array).max(initial=0.0)) for array in arrays), default=0.0)
