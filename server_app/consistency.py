"""How consistently a round's updates move the model, number by number (numpy, pure)."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter
from server_app.merges import Updates


def movement(sent: Adapter, updates: Updates, merged: Adapter) -> dict[str, float]:
    """Compare what each site has moved with what the merge of all has moved.

    Every site counts the same here, whatever its weight in the merge. The numbers are those of
    factors and heads, so they only mean something where factors keep their basis.

    Parameters
    ----------
    sent : Adapter
        What the sites received, theta_g.
    updates : sequence of WeightedAdapter
        The updates theta_k, of ``sent``'s arrays or some of them, by their names.
    merged : Adapter
        What they were merged into, theta_m, of ``sent``'s arrays.

    Returns
    -------
    dict of str to float
        ``client_movement``
            ``mean_k ||theta_k - theta_g||^2``.
        ``drift_diversity``
            That over ``||theta_m - theta_g||^2``: 1 if all sites move alike, larger the more of
            their work cancels; about the number of sites if it is unrelated.
        ``movement_cosine``
            ``mean_k cos(theta_k - theta_g, theta_m - theta_g)``.

        The last two are left out where they are undefined, if nothing moves.
    """
    together = dict(_moved(sent, merged))
    length = sqrt(sum(float(move @ move) for move in together.values()))
    squares, cosines = [], []
    for update in updates:
        square = inner = 0.0
        for name, move in _moved(sent, update.adapter):
            square += float(move @ move)
            inner += float(move @ together[name])
        squares.append(square)
        if square and length:
            cosines.append(inner / (sqrt(square) * length))
    numbers = {"client_movement": float(np.mean(squares))}
    if length:
        numbers["drift_diversity"] = numbers["client_movement"] / length**2
    if cosines:
        numbers["movement_cosine"] = float(np.mean(cosines))
    return numbers


def _moved(sent: Adapter, adapter: Adapter) -> Iterator[tuple[str, NDArray[np.float64]]]:
    start = dict(sent.arrays())
    for name, array in adapter.arrays():
        yield name, (array.astype(np.float64) - start[name]).ravel()
