"""Dysco: each site trains in the directions that the others' activations do not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapp.adapter import Adapter, Array
from fedapp.config import RunConfig
from fedapp.seeds import derive_seed
from fedapp.subspaces import fuse_bases
from server_app.strategies.folding import Folding


class Dysco(Folding):
    """Two phases a round: sites tell bases of what they do not use; then each trains a B.

    Site k sends ``A*_k``, directions its activations hold next to no energy in. Site i gets
    ``A_i``, the top r eigenvectors of ``sum_{j != i} A*_j^T A*_j``, and trains B on it: in
    ``sum_k p_k B_k A_k h_j`` the terms of the others are then small at site j. The products are
    folded; the next round's bases are those of the model that results.

    A site whose basis is missing trains all the same, in what the others do not use; its own
    activations are not respected in that round.

    References
    ----------
    Zhang et al., Dysco, arXiv 2607.14367. How the basis is chosen inside the insensitive subspace
    decides success: ``fedapp.subspaces.insensitive_basis``.
    """

    shares_a = False

    def __init__(self, config: RunConfig, *more: Any) -> None:
        super().__init__(config, *more)
        self._fused: tuple[int, dict[str, dict[str, Array]]] = (0, {})
        self._agreement: dict[str, float] = {}

    def basis_layout(self) -> dict[str, Any]:
        """Return the layout of the bases: one matrix of orthonormal rows a pair, by its name."""
        rows = self.config.dysco.rows or self.config.lora.rank
        shapes = {name: pair.a_rn.shape[1] for name, pair in self.adapter.pairs.items()}
        return {"pairs": {}, "tensors": {name: [min(rows, n), n] for name, n in shapes.items()}}

    def take_bases(self, round: int, bases: Mapping[str, Adapter], sites: Sequence[str]) -> None:
        """Fuse the bases that came; those of ``sites`` without one get what all others use least.

        Parameters
        ----------
        round : int
        bases : mapping of str to Adapter
            By site; validated.
        sites : sequence of str
            All that will train.
        """
        present = sorted(bases)
        absent = sorted(set(sites) - set(bases))
        fused: dict[str, dict[str, Array]] = {site: {} for site in sites}
        agreements = []
        for name, pair in self.adapter.pairs.items():
            stacks = [bases[site].tensors[name] for site in present]
            if absent:
                stacks.append(np.zeros((0, pair.a_rn.shape[1]), np.float32))
            seed = derive_seed(self.config.seed, "fuse", round, name)
            results = fuse_bases(stacks, pair.rank, seed=seed)
            for site, a_rn in zip([*present, *absent[:1]], results, strict=True):
                fused[site][name] = a_rn.astype(np.float32)
            for site in absent[1:]:
                fused[site][name] = fused[absent[0]][name]
            agreements += _agreements(stacks[: len(present)], results)
        self._fused = (round, fused)
        self._agreement = {"basis_agreement": float(np.mean(agreements))} if agreements else {}

    def factors(self, round: int, site: str) -> Mapping[str, Array]:
        """Return the fused bases of a site."""
        of_round, fused = self._fused
        if of_round != round or site not in fused:
            raise RuntimeError(f"round {round} has no fused bases for site {site}")
        return fused[site]

    def numbers(self) -> dict[str, float]:
        """Return `Folding.numbers` and ``basis_agreement``.

        The mean share of a site's directions that another site has proposed, over layers and
        ordered pairs of sites: 1 means that nobody is disturbed by anybody.
        """
        return {**super().numbers(), **self._agreement}


def _agreements(stacks: Sequence[Array], fused: Sequence[Any]) -> list[float]:
    """Return ``||A_i A*_j^T||^2 / r`` of every i and every j other than i."""
    return [
        float(np.square(a_rn @ other.T).sum() / len(a_rn))
        for i, a_rn in enumerate(fused)
        for j, other in enumerate(stacks)
        if j != i
    ]
