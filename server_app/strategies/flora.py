"""FLoRA: the sites' pairs are stacked, folded into the base, and training begins anew."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedapp.adapter import Array
from fedapp.seeds import derive_seed
from server_app.strategies.folding import Folding


class Flora(Folding):
    """Stack ``[B_1, ..., B_N]`` and ``[p_1 A_1; ...; p_N A_N]``: the sum of products, exactly.

    A site trains A and B from the LoRA initialisation, drawn anew every round: A is
    Kaiming-uniform with a = sqrt(5), that is uniform in +-1/sqrt(in_features), and B is zero.

    References
    ----------
    Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
    Adaptations, arXiv 2409.05976.
    """

    trains_a = True

    def factors(self, round: int, site: str) -> Mapping[str, Array]:
        """Draw the initialisation of every pair from seed, round and layer."""
        return {
            name: _uniform(pair.a_rn.shape, derive_seed(self.config.seed, "flora", round, name))
            for name, pair in self.adapter.pairs.items()
        }


def _uniform(shape: tuple[int, ...], seed: int) -> Array:
    bound = 1 / math.sqrt(shape[1])
    return np.random.default_rng(seed).uniform(-bound, bound, shape).astype(np.float32)
