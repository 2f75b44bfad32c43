"""An update as the increment on what was received, and back to the adapter (numpy, pure).

In bf16 and int8 a site sends what its training added, not the adapter itself: rounding then errs
by a share of one round's work, whereas a share of the cumulative adapter can exceed that work.
"""

from __future__ import annotations

import numpy as np

from fedapp.adapter import Adapter


def difference(adapter: Adapter, base: Adapter) -> Adapter:
    """Return ``adapter - base``, array by array; both have one layout."""
    start = dict(base.arrays())
    return adapter.map(lambda name, array: array - start[name])


def add(base: Adapter, increment: Adapter) -> Adapter:
    """Return ``base + increment``, array by array; both have one layout.

    An array that was not trained comes back bit for bit: its increment is zero in every codec. What
    overflows becomes infinite, for `fedapp.validation` to refuse.
    """
    more = dict(increment.arrays())
    with np.errstate(over="ignore", invalid="ignore"):
        return base.map(lambda name, array: array + more[name])
