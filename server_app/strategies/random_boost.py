"""Dysco's control: the same boosting with a random A that knows nothing of any site."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedapp.adapter import Array
from fedapp.seeds import derive_seed
from fedapp.subspaces import random_basis
from server_app.strategies.folding import Folding


class RandomBoost(Folding):
    """Every round all sites train B on one random orthonormal A, and the products are folded.

    The rank of what is learned grows from round to round, and the products of one round are
    averaged without an error, since A is shared. Both are also part of Dysco: what it gains beyond
    this control is due to its choice of subspaces.
    """

    def factors(self, round: int, site: str) -> Mapping[str, Array]:
        """Draw A of every pair from seed, round and layer."""
        return {
            name: random_basis(
                pair.a_rn.shape[1],
                pair.rank,
                derive_seed(self.config.seed, "random-boost", round, name),
            ).astype(np.float32)
            for name, pair in self.adapter.pairs.items()
        }
