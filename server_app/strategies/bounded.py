"""Norm clipping and FLTrust: rules on what a site adds to the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.robust.fltrust import fltrust
from fedapp.robust.norm_clipping import norm_clipping
from fedapp.robust.vectors import Vector, Vectors, to_vector
from server_app.strategies.robust import Robust, Weights
from server_app.updates import Update


class NormClip(Robust):
    """The mean, weighted by records, of updates cut to one length.

    References
    ----------
    Sun et al., Can You Really Backdoor Federated Learning?, arXiv 1911.07963.
    """

    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, Weights]:
        """Return the model moved by the mean of the clipped updates."""
        start_p = to_vector(self.adapter).astype(np.float64)
        records = [update.weight for update in updates]
        bound = self.config.norm_clip.bound or None
        update_p, left_k = norm_clipping(models_kp - start_p, records, bound)
        shares = [left * n / sum(records) for left, n in zip(left_k, records, strict=True)]
        return start_p + update_p, shares


class FlTrust(Robust):
    """Updates count as far as they point where the root site's does, and at its length.

    The root is a site whose records the coordinator trusts, such as a small set of its own. As in
    the paper its update is the yardstick and no part of the mean. With nobody trusted the model
    stays.

    References
    ----------
    Cao et al., FLTrust, NDSS 2021, arXiv 2012.13995.
    """

    def rule(self, models_kp: Vectors, updates: Sequence[Update]) -> tuple[Vector, Weights]:
        """Return the model moved by the trusted updates."""
        sites, root = [update.site for update in updates], self.config.fltrust.root
        if root not in sites:
            raise ValueError(
                f"there is no update of the trusted site '{root}' (fltrust.root), only of "
                f"{', '.join(sites)}; name a site that trains in every round"
            )
        start_p = to_vector(self.adapter).astype(np.float64)
        updates_kp, place = models_kp - start_p, sites.index(root)
        update_p, trust_k = fltrust(updates_kp[place], np.delete(updates_kp, place, axis=0))
        total = trust_k.sum() or 1.0
        return start_p + update_p, np.insert(trust_k / total, place, 0.0).tolist()
