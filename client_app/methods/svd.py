"""Client half of `svd` (FlexLoRA, arXiv 2402.11505): train A, B and the head as in `fedavg`."""

from __future__ import annotations

from client_app.methods.base import LocalRule


class Svd(LocalRule):
    """Plain local training; the merge by SVD gives the pairs a new basis every round."""

    moves_basis = True
