"""The methods: one line each, naming the server half and the client half.

The halves are named by import path and loaded on demand, so that neither side imports the other.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Method:
    """Import paths (``module:Class``) of the two halves of a method and its one-line summary."""

    server: str
    client: str
    summary: str


METHODS: dict[str, Method] = {
    "fedavg": Method(
        "server_app.strategies.fedavg:FedAvg",
        "client_app.methods.fedavg:FedAvg",
        "average the LoRA factors A and B separately (FedIT; stock Flower's FedAvg)",
    ),
    "svd": Method(
        "server_app.strategies.svd:Svd",
        "client_app.methods.svd:Svd",
        "sum the products B A exactly and truncate by SVD (FlexLoRA)",
    ),
    "fedsvd": Method(
        "server_app.strategies.fedsvd:FedSvd",
        "client_app.methods.fedsvd:FedSvd",
        "train B only; re-orthonormalise A by SVD every round (FedSVD)",
    ),
    "subspace-reg": Method(
        "server_app.strategies.subspace_reg:SubspaceReg",
        "client_app.methods.subspace_reg:SubspaceReg",
        "keep each product near the shared one; merge by SVD with an orthonormal B",
    ),
}


def load_half(reference: str) -> Any:
    """Import ``module:Class`` and return the class."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
